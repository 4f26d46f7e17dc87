"""Symbols passed to a traced function; operations on them become instructions."""

import sys

import numpy as np

from . import _core, _trace_kinds as kinds

_CONTROL_FLOW = (
    "{who}: Python control flow on {what} is not possible, because the function is traced once for all scores; "
    "use where(condition, a, b), minimum or maximum instead"
)
NO_INDEX = (
    "{who}: {what} has no value yet, because the function is traced once for all scores: it cannot index a list, nor a "
    "NumPy array that is reached by an attribute; make a Tensor of it (multihead.tensor(array))"
)
_NO_NUMBER = (
    "{who}: {what} has no value yet, because the function is traced once for all scores; use NumPy's functions instead "
    "of float(), int() and those of math"
)
FUNCTIONS = {}  # name -> function(graph, *args); _trace_functions.py fills it
SHAPED = set()  # names of functions of whole vectors; the others are elementwise
_LONGEST = 4096  # elements of a vector per score


class Graph:
    """Instructions with common subexpressions merged.

    `typed`: values have PyTorch's dtypes and are rounded to them. Otherwise numbers have the dtype of the
    computation. `gradients`: captured tensors that require a gradient get one.
    """

    def __init__(self, who, score="f32", typed=False, gradients=False):
        self.who, self.score, self.typed, self.gradients = who, score, typed, gradients
        self.code, self.tables, self.learnt = [], [], {}
        self._known = {}
        self._table_ids = {}
        self._kept = []  # keeps captured arrays alive, so that ids stay unique
        self.outside_tapes = False

    @property
    def default(self):
        """The float type of a converted integer."""
        torch = sys.modules.get("torch")
        return kinds.of_dtype(torch.get_default_dtype(), self.who) if self.typed and torch else self.score

    def emit(self, op, *args, number=0.0, table=-1, kind="any"):
        args = tuple(args) + (-1,) * (3 - len(args))
        key = (op, args, number, str(number), table, kind)  # -0.0 == 0.0
        if key not in self._known:
            self._known[key] = len(self.code)
            self.code.append((op, *args, float(number), table, kind))
        return self._known[key]

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

    def refuse(self, text):
        raise TypeError(f"{self.who}: {text}")

    def table(self, array):
        """The index of the table that holds a captured array."""
        learns = self.gradients and bool(getattr(array, "requires_grad", False))
        is_torch = callable(getattr(array, "data_ptr", None))
        if learns:
            self._check_gradient(array, is_torch)
        key = (id(array), learns)
        if isinstance(array, np.ndarray):
            key = (array.__array_interface__["data"][0], array.shape, array.strides, str(array.dtype))
        elif isinstance(array, _core.Tensor):
            key = (array._identity, array.shape, array.strides, array.dtype, learns)
        if is_torch:
            key = (array.data_ptr(), tuple(array.shape), array.stride(), str(array.dtype), learns)
        if key not in self._table_ids:
            self._kept.append(array)
            self._table_ids[key] = len(self.tables)
            if learns:
                self.learnt[len(self.tables)] = array
            if kinds.of_dtype(array.dtype, self.who) in kinds.WRAPS:  # the kernel's integers have 32 bits
                array = array.int() if is_torch else np.asarray(array).astype(np.int32)
            self.tables.append(array.detach().contiguous() if is_torch else array)
        return self._table_ids[key]

    def _check_gradient(self, array, is_torch):
        """Whether the captured tensor's gradient will reach it."""
        if is_torch != self.typed:
            self.refuse(
                "a captured PyTorch tensor that requires a gradient gets one in multihead.torch.flex_attention only; "
                "pass detach() of it"
                if is_torch
                else "a captured Tensor that requires a gradient gets none from PyTorch; capture a PyTorch tensor"
            )
        if not is_torch and not array.is_leaf and self.outside_tapes:
            self.refuse(
                "a captured tensor was computed from tensors that require a gradient, which would be lost: index those "
                "themselves and compute with the traced values, or compute it under the Tape of the step and trace the "
                "function there"
            )


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
        if name in FUNCTIONS:
            return lambda *args, **kwargs: call(self.graph, name, (self, *args), kwargs)
        raise AttributeError(
            f"{self.graph.who}: a traced value has no '{name}'; it knows arithmetic, comparisons and "
            f"{', '.join(sorted(FUNCTIONS))}"
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
        return call(self.graph, ufunc.__name__, inputs, kwargs)

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
    """An unknown value of a type in _trace_kinds.py."""

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
        from ._trace_tables import index_captured

        return index_captured(graph, args[0], args[1])
    if name.startswith("__"):
        name = name.strip("_")
    if name == "where" and hasattr(func, "__objclass__"):  # tensor.where(condition, other)
        args = (args[1], args[0], *args[2:])
    return call(graph, name, args, kwargs)


def call(graph, name, args, kwargs):
    if name not in FUNCTIONS:
        graph.refuse(f"'{name}' cannot be traced; there are arithmetic, comparisons and {', '.join(sorted(FUNCTIONS))}")
    try:
        if name not in SHAPED and any(not isinstance(x, Symbol) and isinstance(x, Traced) for x in args):
            return _each(graph, FUNCTIONS[name], args, kwargs)
        return FUNCTIONS[name](graph, *args, **kwargs)
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
    from ._trace_tables import lift_captured

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
