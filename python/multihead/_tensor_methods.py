"""What a Tensor has beside the methods of the extension: the names of NumPy, PyTorch and the array API standard.

Where a gradient is recorded a method is differentiable, or says by name that it is not. Elsewhere, and for whole numbers,
NumPy may compute.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import numpy as np

from . import _core
from ._core import Tensor
from ._types import ArrayLike, DTypeLike, Index

_WHOLE = ("int64", "int32", "bool")
_REAL = {"float32", "float64", "float16", "bfloat16"}
_HINTS = {  # what is typed out of habit -> what to write here
    "view": "reshape(...)",
    "dim": "ndim",
    "numel": "size",
    "long": "to('int64')",
    "int": "to('int32')",
    "float": "to('float32')",
    "double": "to('float64')",
    "half": "to('float16')",
    "bfloat16": "to('bfloat16')",
    "bool": "to('bool')",
    "cpu": "the tensor itself: all lie in the CPU's memory",
    "cuda": "nothing else: there is only a CPU",
    "backward": "Tape.backward(loss), in the with block that recorded the loss",
    "masked_fill": "mh.where(mask, value, x)",
    "size_": "shape",
    "dot": "the operator @",
    "ravel": "flatten()",
    "swapaxes": "transpose(a, b)",
    "clip": "multihead.clamp(x, low, high)",
}


def _learns(*values: Any) -> bool:
    """Whether a gradient would be lost if NumPy computed with the values."""
    return _core.is_recording() and any(isinstance(x, Tensor) and x.requires_grad for x in values)


def _refuse(what: str, instead: str) -> None:
    raise TypeError(f"Tensor: {what} has no gradient, and the tensor requires one; {instead}, or use detach()")


def _array(x: Any) -> Any:
    """NumPy's view of a Tensor or array, bfloat16 as float32; numbers stay as they are."""
    if isinstance(x, Tensor):
        x = x.detach()
        return np.asarray(x.to("float32") if x.dtype == "bfloat16" else x)
    if isinstance(x, (bool, int, float, np.generic, np.ndarray)):
        return x
    return np.asarray(_core.tensor(x).detach())


def _is_operand(x: Any) -> bool:
    return isinstance(x, (Tensor, bool, int, float, np.generic, np.ndarray)) or hasattr(x, "__dlpack__")


def _tensor(result: Any, *inputs: Any) -> Tensor:
    """A Tensor of what NumPy made of the inputs, in their real type, by the rules of + and *: numbers have none, whole
    numbers divided are float32."""
    real = {str(x.dtype) for x in inputs if hasattr(x, "dtype") and not isinstance(x, np.generic)} & _REAL
    if len(real) > 1:
        raise _core.DtypeError(f"Tensor: {' and '.join(sorted(real))} in one operation; cast() one of them")
    result = np.asarray(result)
    return _core.tensor(result, dtype=next(iter(real), "float32") if result.dtype.kind == "f" else None)


def by_numpy(ufunc: str, *operands: Any) -> Tensor:
    """The operator of whole numbers, which have no gradient. The extension calls it."""
    return _tensor(getattr(np, ufunc)(*map(_array, operands)), *operands)


def index(x: Tensor, key: Any) -> Tensor:
    """x[key] by arrays, masks and slices with a step. The extension calls it; differentiable."""
    items = key if isinstance(key, tuple) else (key,)
    plain = tuple(_index(item) for item in items)
    if not _learns(x):
        array = np.asarray(_array(x)[plain], order="C")
        return _core.tensor(array, dtype=x.dtype)
    places = np.asarray(np.arange(x.size).reshape(x.shape)[plain], order="C")
    return _core.take(_core.reshape(x, (x.size,)), places, 0)


def _index(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, (slice, int, np.ndarray)):
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iub" and array.size > 0:
        raise TypeError(
            f"Tensor: indices are integers, slices, None, ... and arrays of integers or bools, got {type(item).__name__}"
        )
    return array if array.size > 0 or array.dtype.kind in "iub" else array.astype(np.int64)


def _operator(ufunc: str, swapped: bool = False) -> Any:
    """An operator that has no gradient: of whole numbers, or refused where one is recorded."""
    function = getattr(np, ufunc)

    def operate(self: Tensor, other: Any) -> Any:
        if hasattr(other, "__multihead_traced__") or not _is_operand(other):
            return NotImplemented
        if _learns(self, other):
            _refuse(f"numpy's {ufunc}", "write it with multihead's functions")
        a, b = (other, self) if swapped else (self, other)
        return _tensor(function(_array(a), _array(b)), self, other)

    return operate


def _comparison(ufunc: str) -> Any:
    function = getattr(np, ufunc)

    def compare(self: Tensor, other: Any) -> Any:
        if hasattr(other, "__multihead_traced__") or not _is_operand(other):
            return NotImplemented
        _core.refuse_while_tracing(self)
        return _core.tensor(np.asarray(function(_array(self), _array(other))))

    return compare


def _axes(axis: int | Sequence[int] | None) -> Any:
    return tuple(axis) if isinstance(axis, (list, tuple)) else axis


def _reduced(name: str, x: Tensor, axis: int | Sequence[int] | None, keepdims: bool) -> Tensor:
    if x.dtype in _WHOLE:
        array = _array(x)
        return _tensor(getattr(np, name)(array, axis=_axes(axis), keepdims=keepdims), x)
    if _axes(axis) == ():  # over no axis at all
        return x.clone()
    reduce = getattr(_core, name)
    return reduce(x, axis, keepdims)  # type: ignore[no-any-return]


def _functions() -> dict[str, Any]:
    """Methods that are functions of the package, by the same name."""
    names = ("exp", "log", "sqrt", "square", "tanh", "sigmoid", "relu", "softmax", "log_softmax")
    return {name: getattr(_core, name) for name in names}


class Methods:
    """Copied into Tensor. A method's self is the Tensor."""

    __slots__ = ()
    __hash__ = object.__hash__

    __lt__ = _comparison("less")
    __le__ = _comparison("less_equal")
    __gt__ = _comparison("greater")
    __ge__ = _comparison("greater_equal")
    __eq__ = _comparison("equal")
    __ne__ = _comparison("not_equal")
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", True)
    __and__, __rand__ = _operator("bitwise_and"), _operator("bitwise_and", True)
    __or__, __ror__ = _operator("bitwise_or"), _operator("bitwise_or", True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _operator("bitwise_xor", True)
    __lshift__, __rlshift__ = _operator("left_shift"), _operator("left_shift", True)
    __rshift__, __rrshift__ = _operator("right_shift"), _operator("right_shift", True)

    def __invert__(self: Tensor) -> Tensor:
        return _tensor(np.invert(_array(self)), self)

    def __pos__(self: Tensor) -> Tensor:
        return self

    def __abs__(self: Tensor) -> Tensor:
        return _tensor(np.abs(_array(self)), self) if self.dtype in _WHOLE else _core.abs(self)

    def __pow__(self: Tensor, power: Any) -> Tensor:
        if hasattr(power, "__multihead_traced__") or not _is_operand(power):
            return NotImplemented
        if isinstance(power, (int, float)) and self.dtype not in _WHOLE:
            if power == 2:
                return _core.square(self)
            if power == 0.5:
                return _core.sqrt(self)
            if power == -1:
                return 1.0 / self
        if _learns(self, power):
            return _core.pow(self, power)
        return _tensor(np.power(_array(self), _array(power)), self, power)

    def __rpow__(self: Tensor, base: Any) -> Tensor:
        if hasattr(base, "__multihead_traced__") or not _is_operand(base):
            return NotImplemented
        if _learns(self, base):
            return _core.pow(base, self)
        return _tensor(np.power(_array(base), _array(self)), self, base)

    def __bool__(self: Tensor) -> bool:
        if self.size != 1:
            raise ValueError(
                f"Tensor: the truth of {self.size} elements is ambiguous; use any(), all(), or size for how many there are"
            )
        return bool(self.item())

    def __int__(self: Tensor) -> int:
        return int(self.item())

    def __index__(self: Tensor) -> int:
        if self.dtype not in ("int64", "int32") or self.size != 1 or self.ndim != 0:
            raise TypeError(f"Tensor: only an integer tensor without axes is an index, got {self.dtype} {self.shape}")
        return int(self.item())

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("Tensor: a tensor without axes cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self: Tensor, value: Any) -> bool:
        return bool((_array(self) == _array(value)).any())

    def __format__(self: Tensor, spec: str) -> str:
        if not spec:
            return str(self)
        if self.size != 1:
            raise TypeError(f"Tensor: a format of numbers takes one element, got shape {self.shape}")
        return format(self.item(), spec)

    def __repr__(self: Tensor) -> str:
        extra = "" if self.dtype in ("float32", "int64", "bool") and self.size > 0 else f", dtype={self.dtype}"
        extra += ", requires_grad=True" if self.requires_grad else ""
        if 0 in self.shape:
            return f"Tensor([], shape={self.shape}{extra})"
        return "Tensor(" + np.array2string(_array(self), separator=", ", prefix="Tensor(") + extra + ")"

    def __str__(self: Tensor) -> str:
        return str(_array(self))

    def __setitem__(self: Tensor, key: Index, value: ArrayLike) -> None:
        if _core.has_tape():
            raise TypeError("Tensor: elements cannot be changed while a Tape records; use where() or concat(), which make new ones")
        if self.dtype == "bfloat16":
            raise TypeError("Tensor: NumPy has no bfloat16, so that elements cannot be set; use to('float32')")
        if self.size and any(step == 0 and size > 1 for step, size in zip(self.strides, self.shape)):
            raise ValueError("Tensor: several elements of an expanded tensor are one in memory; copy() it first")
        items = key if isinstance(key, tuple) else (key,)
        np.asarray(self.detach())[tuple(_index(item) for item in items)] = _array(value)

    def __copy__(self: Tensor) -> Tensor:
        if not self.is_leaf:
            return self.clone()
        return _core.tensor(self.detach().clone(), requires_grad=self.requires_grad)

    def __getattr__(self: Tensor, name: str) -> Any:
        ours = f"multihead.{name}(x, ...)" if name.islower() and callable(getattr(_core, name, None)) else ""
        hint = f"; write {hint}" if (hint := _HINTS.get(name, ours)) else ""
        raise AttributeError(f"Tensor has no '{name}'{hint}")

    @property
    def T(self: Tensor) -> Tensor:  # noqa: N802
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"Tensor: T needs 2 axes, got {self.ndim}; mT swaps the last two, permute() any")
        return self.transpose(0, 1)

    @property
    def mT(self: Tensor) -> Tensor:  # noqa: N802
        """With the last two axes swapped."""
        if self.ndim < 2:
            raise ValueError(f"Tensor: mT needs at least 2 axes, got {self.ndim}")
        return self.transpose(-2, -1)

    @property
    def device(self: Tensor) -> str:
        return "cpu"

    def sum(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Over one axis, several, or all."""
        return _reduced("sum", self, axis, keepdims)

    def mean(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Over one axis, several, or all."""
        return _reduced("mean", self, axis, keepdims)

    def max(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Over one axis, several, or all; equal elements share the gradient."""
        return _reduced("max", self, axis, keepdims)

    def min(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Over one axis, several, or all; equal elements share the gradient."""
        return _reduced("min", self, axis, keepdims)

    def var(
        self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0
    ) -> Tensor:
        """Variance; correction=1 divides by one less than the count."""
        if self.dtype in ("float16", "bfloat16"):  # whose sums of squares may be out of range
            return _core.cast(_core.cast(self, "float32").var(axis, keepdims, correction), self.dtype)
        x = self.to("float32") if self.dtype in _WHOLE else self
        center = x - x.mean(axis, True)
        total = _core.square(center).sum(axis, keepdims)
        count = x.size // max(total.size, 1)
        return _core.scale(total, 1 / (count - correction) if count > correction else float("nan"))

    def std(
        self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0
    ) -> Tensor:
        """The square root of var(); where all elements are equal, its gradient is 0."""
        var = self.var(axis, keepdims, correction)
        if not _learns(var):
            return _core.sqrt(var)
        equal = (var.detach() == 0).to(var.dtype)  # 1 where the root has no derivative
        return _core.sqrt(var + equal) - equal

    def prod(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Product, without a gradient."""
        if _learns(self):
            _refuse("prod()", "write exp(log(x).sum()) for positive numbers")
        return _tensor(np.prod(_array(self), axis=_axes(axis), keepdims=keepdims), self)

    def argmax(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Where the first largest element is, int64: along an axis, or in the flattened tensor."""
        return _reduced("argmax", self, axis, keepdims)

    def argmin(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Where the first smallest element is, int64: along an axis, or in the flattened tensor."""
        return _reduced("argmin", self, axis, keepdims)

    def all(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether all elements are true."""
        return _tensor(np.all(_array(self), axis=_axes(axis), keepdims=keepdims))

    def any(self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether one element is true."""
        return _tensor(np.any(_array(self), axis=_axes(axis), keepdims=keepdims))

    def permute(self: Tensor, *axes: int) -> Tensor:
        """View whose axis i is axes[i] of this tensor."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes
        return _core.permute(self, list(order))

    def squeeze(self: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
        """View without these axes of size 1, or without all such."""
        if axis is None:
            return self.reshape(tuple(size for size in self.shape if size != 1))
        dropped = [_axis(self.ndim, a) for a in (axis if isinstance(axis, (list, tuple)) else (axis,))]
        for a in dropped:
            if self.shape[a] != 1:
                raise _core.ShapeError(f"squeeze: axis {a} of {self.shape} must be of size 1")
        return self.reshape(tuple(size for a, size in enumerate(self.shape) if a not in dropped))

    def unsqueeze(self: Tensor, axis: int) -> Tensor:
        """View with a new axis of size 1."""
        sizes = list(self.shape)
        sizes.insert(_axis(self.ndim + 1, axis), 1)
        return self.reshape(tuple(sizes))

    def flatten(self: Tensor, start: int = 0, end: int = -1) -> Tensor:
        """With the axes from start to end, all by default, as one."""
        if self.ndim == 0:
            return self.reshape((1,))
        first, last = _axis(self.ndim, start), _axis(self.ndim, end)
        if first > last:
            raise ValueError(f"flatten: start must not come after end, got {start} and {end} of {self.ndim} axes")
        count = int(np.prod(self.shape[first : last + 1], dtype=np.int64))
        return self.reshape((*self.shape[:first], count, *self.shape[last + 1 :]))

    def copy(self: Tensor) -> Tensor:
        """A row-major copy. Differentiable."""
        return self.clone()

    def astype(self: Tensor, dtype: DTypeLike) -> Tensor:
        """As to()."""
        return self.to(dtype)


def _axis(count: int, axis: int) -> int:
    if not -count <= axis < count:
        raise _core.ShapeError(f"Tensor: axis {axis} is outside {count} axes")
    return axis % count


def install() -> None:
    taken = {"__module__", "__doc__", "__slots__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__",
             "__static_attributes__"}  # fmt: skip
    for name, value in vars(Methods).items():
        if name not in taken:
            if hasattr(value, "__code__"):
                value.__qualname__ = f"Tensor.{name}"  # what Python's own errors say
            setattr(Tensor, name, value)
    for name, function in _functions().items():
        setattr(Tensor, name, _method(function))


def _method(function: Any) -> Any:
    def method(self: Tensor, *args: Any, **keywords: Any) -> Tensor:
        return function(self, *args, **keywords)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method
