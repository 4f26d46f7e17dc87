"""Subclasses of what the library itself runs.

Training, generation and evaluation call the library's own methods of a model or a tokenizer, never those of a Python
subclass: one that overrides a method is refused when it is defined.
"""

from . import _core

# Classes whose methods only Python calls: overrides are used.
_FREE = {"Linear", "Embedding", "Norm", "FeedForward", "MultiHeadAttention", "TransformerLayer", "TransformerEncoder",
         "TransformerDecoder", "Transformer", "RelativeBias", "SinusoidalPositionalEncoding", "Optimizer", "SGD",
         "Adam", "AdamW", "Tensor"}  # fmt: skip
_OWN = {"__init__", "__new__", "__init_subclass__", "__repr__", "__str__", "__doc__", "__module__", "__qualname__",
        "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"}  # fmt: skip


def _check(cls, base):
    for name in vars(cls):
        if name in vars(base) and name not in _OWN:
            raise TypeError(
                f"{cls.__name__}: '{name}' of {base.__name__} cannot be overridden: training, generation and the other "
                "methods would go on calling the library's; give the method a name of its own, or write an nn.Module "
                "that holds the object"
            )


def _forbid(base):
    def init_subclass(cls, **keywords):
        super(base, cls).__init_subclass__(**keywords)
        _check(cls, base)

    base.__init_subclass__ = classmethod(init_subclass)


def install():
    for kind in vars(_core).values():
        if isinstance(kind, type) and kind.__module__ == _core.__name__ and kind.__name__ not in _FREE:
            _forbid(kind)
