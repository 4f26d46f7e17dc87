"""The layers of a module."""

from . import _core


class Parts(tuple):
    """A module's layers. They are its own: none can be replaced, added or removed, only changed in place."""

    def __new__(cls, name, layers):
        parts = super().__new__(cls, layers)
        parts.name = name
        return parts

    def _refuse(self, *_):
        raise TypeError(
            f"{self.name}: the model runs its own layers, so that none can be replaced, added or removed; load weights "
            "into a layer with load_state_dict(), or write a Module that calls layers of your own"
        )

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = _refuse

    def __reduce__(self):
        return list, (list(self),)


def _as_parts(listed):
    return property(lambda self: Parts("layers", listed.fget(self)), doc="The layers, which the module runs itself.")


def install():
    for kind in vars(_core).values():
        if isinstance(kind, type) and isinstance(vars(kind).get("layers"), property):
            kind.layers = _as_parts(kind.layers)
