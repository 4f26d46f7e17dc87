"""Captured tensors, indexed by traced values down to a scalar or a short vector."""

import math
import operator

import numpy as np

from . import _trace_kinds as kinds
from ._trace_symbols import Symbol, Traced, Vector, _LONGEST, cast, constant, find, lift, objects


def kind_of(graph, array):
    if isinstance(array, np.ma.MaskedArray):
        graph.refuse("a masked array would lose its mask; capture array.filled(…)")
    kind = kinds.of_dtype(array.dtype, graph.who)
    return kind if graph.typed or kind not in kinds.FLOATS else graph.score


def _learns(graph, array):
    return graph.gradients and bool(getattr(array, "requires_grad", False))


def lift_captured(graph, value):
    """A captured tensor of one element. It has a dtype, unlike a plain number."""
    if isinstance(value, Partial):
        return lift_captured(graph, value.expand())
    shape = getattr(value, "shape", None)
    if shape is None:
        graph.refuse(f"cannot use a {type(value).__name__} in a traced function")
    if isinstance(value, Vector) or math.prod(shape) != 1:
        graph.refuse(
            f"a captured tensor of shape {tuple(shape)} must be indexed down to one number, for example "
            "bias[head, query, key]"
        )
    if _learns(graph, value):
        return _gather(graph, value, constant(graph, 0, "i64"))
    number, kind = value.item(), kind_of(graph, value)
    return constant(graph, number, kind) if graph.typed or kind == "b" else number


def _gather(graph, array, flat):
    kind = kind_of(graph, array)
    table = graph.table(array)
    if kind in kinds.FLOATS:
        return graph.number("gather_f", kind, flat, table=table)
    return Symbol(graph, graph.emit("gather_i", flat.register, table=table), kind)


class Partial(Traced):
    """A partly indexed captured tensor: bias[b] awaits [q]."""

    __slots__ = ("array", "at")

    def __init__(self, graph, array, at):
        self.graph, self.array, self.at = graph, array, at  # per axis: a symbol, or the range that is left

    shape = property(lambda self: tuple(len(at) for at in self.at if isinstance(at, range)))
    ndim = property(lambda self: len(self.shape))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        return _index(self.graph, self.array, self.at, index)

    def become(self, _):
        self.graph.refuse("a captured tensor cannot be changed in place")

    def expand(self):
        """All its elements, as a vector."""
        count = math.prod(self.shape)
        if count > _LONGEST:
            self.graph.refuse(
                f"a captured tensor must be indexed down to one number, or {_LONGEST} at most; left are "
                f"{list(self.shape)}"
            )
        return Vector(self.graph, objects(self.shape, [self[i] for i in np.ndindex(*self.shape)]))


def index_captured(graph, array, index):
    """array[index] with traced values in the index."""
    if isinstance(array, Traced):
        return array[index]
    return _index(graph, array, [range(n) for n in array.shape], index)


def _index(graph, array, at, index):
    index = list(index) if isinstance(index, tuple) else [index]
    free = [axis for axis, x in enumerate(at) if isinstance(x, range)]
    given = sum(x is not Ellipsis for x in index)
    if given > len(free):
        graph.refuse(f"a captured tensor of shape {tuple(array.shape)} has no {len(at) - len(free) + given} axes")
    if given < len(index):
        where = next(i for i, x in enumerate(index) if x is Ellipsis)
        index[where : where + 1] = [slice(None)] * (len(free) - given)
    at = list(at)
    for axis, x in zip(free, index):
        if isinstance(x, slice):
            at[axis] = _part(graph, at[axis], x)
        elif find((x,)) is not None or getattr(x, "shape", None) == ():
            at[axis] = _of_range(graph, at[axis], _as_index(graph, x), array.shape[axis])
        else:
            try:
                x = constant(graph, operator.index(x), "i64")
            except TypeError:
                graph.refuse(f"a captured tensor cannot be indexed by {type(x).__name__} here")
            at[axis] = _of_range(graph, at[axis], x, array.shape[axis])
    if any(isinstance(x, range) for x in at):
        return Partial(graph, array, at)
    return _element(graph, array, at)


def _part(graph, whole, part):
    try:
        return whole[part]
    except TypeError:  # a traced bound
        graph.refuse("the bounds of a slice are plain numbers")


def _of_range(graph, left, index, size):
    """The index in the whole axis of an index in the part of it that is left."""
    if left == range(size):
        return index
    inner = Symbol(graph, graph.emit("bound_i", index.register, number=len(left)), "i64")
    return inner * left.step + left.start


def _as_index(graph, value):
    value = lift(graph, value)
    kind = value.kind if isinstance(value, Symbol) else "i64"
    if kind in kinds.FLOATS:
        graph.refuse("indices are integers; use .int()")
    if kind in ("b", "u8"):
        graph.refuse(f"an index of {kinds.DTYPES[kind]} would be a mask; convert it with .int()")
    return cast(graph, value, kind)


def _element(graph, array, at):
    """array[i, j, …] with one index per axis."""
    flat, stride = None, 1
    for size, index in reversed(list(zip(array.shape, at))):
        index = Symbol(graph, graph.emit("bound_i", index.register, number=size), "i64")
        part = index if stride == 1 else index * stride
        flat = part if flat is None else part + flat
        stride *= size
    return lift_captured(graph, array) if flat is None else _gather(graph, array, flat)
