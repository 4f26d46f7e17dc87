"""Values of a traced function: symbols, short vectors of them, and captured tensors that are indexed by them.

Operations on them become instructions. The functions themselves are found by name in their graph's tables.
"""

import math
import operator
import sys

import numpy as np

from . import kinds
from .graph import Code

_CONTROL_FLOW = (
    "{who}: Python control flow on {what} is not possible, because the function is traced once for all scores; "
    "use where(condition, a, b), minimum or maximum instead"
)
NO_INDEX = (
    "{who}: {what} has no value yet, because the function is traced once for all scores: it cannot index a list or dict, nor a "
    "NumPy array that is reached by an attribute; make a Tensor of it (multihead.tensor(array))"
)
_NO_NUMBER = (
    "{who}: {what} has no value yet, because the function is traced once for all scores; use NumPy's functions instead "
    "of float(), int() and those of math"
)
_LONGEST = 4096  # elements of a vector per score


class Graph(Code):
    """Code that hands out its registers as symbols."""

    def number(self, op, kind, *operands, number=0.0, table=-1):
        """A float instruction whose result is rounded to `kind`."""
        registers = [-1 if x is None else x.register for x in operands]
        emitted = self.emit(op, *registers, number=number, table=table, kind=kind if self.typed else "any")
        return Symbol(self, emitted, kind)

    def integer(self, op, kind, *operands, number=0.0, table=-1):
        result = Symbol(self, self.emit(op, *(x.register for x in operands), number=number, table=table), kind)
        return result.wrapped() if op.endswith("_i") else result

    def condition(self, op, *operands):
        return Symbol(self, self.emit(op, *(x.register for x in operands)), "b")


class Traced:
    """A traced value: one per score, or a short vector."""

    __array_priority__ = 1e6
    __slots__ = ("graph",)
    __hash__ = object.__hash__

    __multihead_traced__ = True  # for Tensor.__getitem__

    def _refusal(text):
        def refuse(self, *_):
            raise TypeError(text.format(who=self.graph.who, what=getattr(self, "name", None) or "a traced value"))

        return refuse

    __bool__ = __iter__ = _refusal(_CONTROL_FLOW)
    __index__ = _refusal(NO_INDEX)
    __int__ = __float__ = item = tolist = numpy = _refusal(_NO_NUMBER)

    def __getattr__(self, name):
        if name in self.graph.elementwise or name in self.graph.of_vectors:
            return lambda *args, **kwargs: call(self.graph, name, (self, *args), kwargs)
        raise AttributeError(
            f"{self.graph.who}: a traced value has no '{name}'; it knows arithmetic, comparisons and {self.graph.names()}"
        )

    def where(self, condition, other):
        return call(self.graph, "where", (condition, self, other), {})

    @property
    def device(self):
        torch = sys.modules.get("torch")
        return torch.device("cpu") if self.graph.typed and torch else "cpu"

    # --- NumPy and PyTorch functions of symbols ---
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__":
            return NotImplemented
        name = ufunc.__name__
        return call(self.graph, "numpy_sign" if name == "sign" else name, inputs, kwargs)

    def __array_function__(self, func, types, args, kwargs):
        return call(self.graph, func.__name__, args, kwargs)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch_call(func, args, kwargs or {})


def _operators():
    def method(name, swapped=False):
        if swapped:
            return lambda self, other: call(self.graph, name, (other, self), {})
        return lambda self, *other: call(self.graph, name, (self, *other), {})

    def in_place(name):
        return lambda self, other: self.become(call(self.graph, name, (self, other), {}))

    for operator, name in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
        "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
        "rshift": "bitwise_right_shift",
    }.items():  # fmt: skip
        setattr(Traced, f"__{operator}__", method(name))
        setattr(Traced, f"__r{operator}__", method(name, swapped=True))
        setattr(Traced, f"__i{operator}__", in_place(name))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Traced, f"__{name}__", method(name))
    for operator, name in {"neg": "neg", "pos": "positive", "abs": "abs", "invert": "bitwise_not"}.items():
        setattr(Traced, f"__{operator}__", method(name))


_operators()


class Symbol(Traced):
    """An unknown value of a type in kinds.py."""

    __slots__ = ("register", "kind", "name")
    shape, ndim = (), 0

    def __init__(self, graph, register, kind, name=None):
        self.graph, self.register, self.kind, self.name = graph, register, kind, name

    def __repr__(self):
        return f"<{self.name or 'traced value'}>"

    def __len__(self):
        raise TypeError(f"{self.graph.who}: a traced value is one number and has no length")

    def __getitem__(self, _):
        raise TypeError(f"{self.graph.who}: a score is one number and cannot be indexed")

    @property
    def dtype(self):
        torch = sys.modules.get("torch")
        name = kinds.DTYPES[self.kind]
        return getattr(torch, name) if self.graph.typed and torch else name

    def become(self, result):
        """In-place operations keep the type."""
        if kinds.category(result.kind) > kinds.category(self.kind):
            old, new = kinds.DTYPES[self.kind], kinds.DTYPES[result.kind]
            self.graph.refuse(f"an in-place operation cannot turn {old} into {new}")
        self.register = cast(self.graph, result, self.kind).register
        return self

    def wrapped(self):
        """Integers of 8 and 16 bits wrap around."""
        if self.kind not in kinds.WRAPS:
            return self
        return Symbol(self.graph, self.graph.emit("wrap_i", self.register, number=kinds.WRAPS[self.kind]), self.kind)


class Vector(Traced):
    """A few values per score, from a partly indexed captured tensor."""

    __slots__ = ("items",)

    def __init__(self, graph, items):
        self.graph, self.items = graph, items  # a NumPy array of symbols

    shape = property(lambda self: self.items.shape)
    ndim = property(lambda self: self.items.ndim)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if find((index,)) is not None:
            self.graph.refuse("a traced vector can be indexed by plain numbers only")
        picked = self.items[index]
        return Vector(self.graph, picked) if isinstance(picked, np.ndarray) else picked

    def expand(self):
        return self

    def become(self, _):
        self.graph.refuse("a traced vector cannot be changed in place")


def objects(shape, items):
    """A NumPy array of symbols."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def find(args):
    for value in args:
        if isinstance(value, Traced):
            return value
        if isinstance(value, (tuple, list)):
            inner = find(value)
            if inner is not None:
                return inner
    return None


def torch_call(func, args, kwargs):
    graph = find(list(args) + list(kwargs.values())).graph
    name = getattr(func, "__name__", str(func))
    if name == "__getitem__":
        return index_captured(graph, args[0], args[1])
    if name.startswith("__"):
        name = name.strip("_")
    if name == "where" and hasattr(func, "__objclass__"):  # tensor.where(condition, other)
        args = (args[1], args[0], *args[2:])
    return call(graph, name, args, kwargs)


def call(graph, name, args, kwargs):
    function = graph.of_vectors.get(name) or graph.elementwise.get(name)
    if function is None:
        graph.refuse(f"'{name}' cannot be traced; there are arithmetic, comparisons and {graph.names()}")
    try:
        if name not in graph.of_vectors and any(not isinstance(x, Symbol) and isinstance(x, Traced) for x in args):
            return _each(graph, function, args, kwargs)
        return function(graph, *args, **kwargs)
    except TypeError as error:
        if error.__traceback__.tb_next is None:  # the arguments do not match
            graph.refuse(f"'{name}' with such arguments cannot be traced: {error}")
        raise


def _each(graph, function, args, kwargs):
    """Applies the function elementwise to broadcast vectors."""
    vectors = [isinstance(x, Traced) and not isinstance(x, Symbol) for x in args]
    arrays = [x.expand().items if is_vector else objects((), [x]) for x, is_vector in zip(args, vectors)]
    arrays = np.broadcast_arrays(*arrays)
    if arrays[0].size > _LONGEST:
        graph.refuse(f"{arrays[0].size} numbers for every score are too many; {_LONGEST} are possible")
    items = [function(graph, *each, **kwargs) for each in zip(*(a.reshape(-1) for a in arrays))]
    return Vector(graph, objects(arrays[0].shape, items))


# --- values, their types and conversions --------------------------------------------------------------------


def lift(graph, value):
    """A symbol, or a plain number that adopts the other operand's type."""
    if isinstance(value, Symbol):
        return value
    if kinds.is_number(value):
        return value
    return lift_captured(graph, value)


def common(graph, *values):
    """PyTorch's common type: that of the tensors, unless a plain number has a higher category."""
    strong, weak = None, -1
    for value in values:
        if isinstance(value, Symbol):
            strong = value.kind if strong is None else kinds.promote(strong, value.kind)
        else:
            weak = max(weak, kinds.category_of_number(value))
    if strong is not None and kinds.category(strong) >= weak:
        return strong
    return ("b", "i64", graph.default)[weak]


def constant(graph, value, kind):
    if kind == "b":
        return Symbol(graph, graph.emit("const_i", number=int(bool(value))), "b")
    if kind in kinds.INTEGERS:
        low, high = kinds.INTEGERS[kind]
        if not low <= int(value) <= high:
            graph.refuse(f"the number {value} does not fit into {kinds.DTYPES[kind] if kind != 'i64' else '32 bits'}")
        return Symbol(graph, graph.emit("const_i", number=int(value)), kind)
    return graph.number("const_f", kind, number=kinds.rounded(value, kind) if graph.typed else float(value))


def cast(graph, value, kind):
    """The value converted as in PyTorch: floats truncate, small integers wrap, non-zero is true."""
    if not isinstance(value, Symbol):
        return constant(graph, value, kind)
    old = value.kind
    if old == kind:
        return value
    if kind == "b":
        if old in kinds.INTEGERS:
            return graph.condition("ne_i", value, constant(graph, 0, old))
        return graph.condition("ne_f", value, constant(graph, 0.0, old))
    if kind in kinds.INTEGERS:
        if old in kinds.FLOATS:
            value = Symbol(graph, graph.emit("to_i", value.register), kind)
        narrower = old not in kinds.INTEGERS or kinds.promote(old, kind) != kind
        result = Symbol(graph, value.register, kind)
        return result.wrapped() if narrower and old != "b" else result
    if old not in kinds.FLOATS:
        return graph.number("to_f", kind, value)
    if not graph.typed or kinds.promote(old, kind) == kind:
        return Symbol(graph, value.register, kind)
    return graph.number("copy_f", kind, value)


def operands(graph, *values):
    """The values converted to their common type, and that type."""
    values = [lift(graph, x) for x in values]
    kind = common(graph, *values)
    return kind, *(cast(graph, x, kind) for x in values)


def by_names(rows):
    """{"a b": function} as {"a": function, "b": function}."""
    return {name: function for names, function in rows.items() for name in names.split()}


# --- captured tensors ---------------------------------------------------------------------------------------


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
    if 0 in array.shape:  # no index fits, which is an error once a score is computed
        nowhere = graph.emit("bound_i", constant(graph, 1, "i64").register, number=1)
        return _gather(graph, array, Symbol(graph, nowhere, "i64"))
    flat, stride = None, 1
    for size, index in reversed(list(zip(array.shape, at))):
        index = Symbol(graph, graph.emit("bound_i", index.register, number=size), "i64")
        part = index if stride == 1 else index * stride
        flat = part if flat is None else part + flat
        stride *= size
    return lift_captured(graph, array) if flat is None else _gather(graph, array, flat)
