"""NumPy's functions of Tensors.

Where a gradient is recorded, they are the library's own or refused: NumPy's would give an array without it. Elsewhere
they see the Tensor's numbers and give NumPy's results.
"""

import numpy as np

from . import _core

_OPERATORS = {  # ufunc -> methods of a Tensor on the left and on the right
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", "__rtruediv__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.negative: ("__neg__", None),
    np.power: ("__pow__", "__rpow__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
    np.equal: ("__eq__", "__eq__"),
    np.not_equal: ("__ne__", "__ne__"),
}
_FUNCTIONS = {
    np.exp: _core.exp,
    np.log: _core.log,
    np.sqrt: _core.sqrt,
    np.tanh: _core.tanh,
    np.square: _core.square,
    np.absolute: _core.abs,
    np.maximum: _core.maximum,
    np.minimum: _core.minimum,
}


def _learns(value, depth=0):
    """Whether the value is, or a list in it holds, a Tensor that requires a gradient."""
    if isinstance(value, _core.Tensor):
        return value.requires_grad
    if depth < 4 and isinstance(value, (list, tuple, dict)):
        return any(_learns(x, depth + 1) for x in (value.values() if isinstance(value, dict) else value))
    return False


def _plain(value, depth=0):
    """The value with arrays for the Tensors in it: a Tensor's own methods take other arguments than NumPy's."""
    if isinstance(value, _core.Tensor):
        return np.asarray(value)
    if depth < 4 and type(value) in (list, tuple):
        return type(value)(_plain(x, depth + 1) for x in value)
    if depth < 4 and type(value) is dict:
        return {name: _plain(x, depth + 1) for name, x in value.items()}
    return value


def _refuse(name):
    raise TypeError(
        f"Tensor: numpy.{name} has no gradient here, and the tensor requires one; use the functions of multihead, or "
        "numpy.asarray(tensor.detach()) for its numbers"
    )


def _array_ufunc(self, ufunc, method, *inputs, **keywords):
    if any(hasattr(x, "__multihead_traced__") for x in inputs):
        return NotImplemented  # a traced value knows better
    if any(isinstance(x, _core.Tensor) for x in keywords.get("out", ())):
        raise TypeError(
            f"Tensor: numpy.{ufunc.__name__} writes to arrays; give out=numpy.asarray(tensor), which has the same memory"
        )
    if not (_core.is_recording() and (_learns(inputs) or _learns(keywords))):
        keywords = _plain(keywords)
        return getattr(ufunc, method)(*(np.asarray(x) if isinstance(x, _core.Tensor) else x for x in inputs), **keywords)
    if method != "__call__" or keywords:
        _refuse(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
    if ufunc in _FUNCTIONS:
        return _FUNCTIONS[ufunc](*inputs)
    if ufunc not in _OPERATORS:
        _refuse(ufunc.__name__)
    left, right = _OPERATORS[ufunc]
    if isinstance(inputs[0], _core.Tensor):
        result = getattr(inputs[0], left)(*inputs[1:])
    else:
        result = getattr(inputs[1], right)(inputs[0])
    if result is NotImplemented:
        raise TypeError(f"Tensor: numpy.{ufunc.__name__} takes numbers and arrays, got {_kinds(inputs)}")
    return result


def _kinds(inputs):
    return " and ".join(str(getattr(x, "dtype", type(x).__name__)) for x in inputs)


def _array_function(self, function, types, args, keywords):
    if any(hasattr(kind, "__multihead_traced__") for kind in types):
        return NotImplemented
    if _core.is_recording() and (_learns(args) or _learns(keywords)):
        _refuse(function.__name__)
    return function._implementation(*_plain(args), **_plain(keywords))


def install():
    _core.Tensor.__array_ufunc__ = _array_ufunc
    _core.Tensor.__array_function__ = _array_function
