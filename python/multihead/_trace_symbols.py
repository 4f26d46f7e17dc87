"""The symbols that a traced function is called with: what is done to them becomes instructions."""

import math
import numbers

import numpy as np

_CONTROL_FLOW = (
    "{who}: Python control flow on {what} is not possible, because the function is traced once for all scores; "
    "use where(condition, a, b), minimum or maximum instead"
)


class _Graph:
    """Instructions with common subexpressions merged."""

    def __init__(self, who):
        self.who = who
        self.code = []
        self.tables = []
        self._known = {}
        self._table_ids = {}
        self._kept = []  # keeps captured arrays alive, so that ids stay unique

    def emit(self, op, *args, number=0.0, table=-1):
        args = tuple(args) + (-1,) * (3 - len(args))
        key = (op, args, number, table)
        if key not in self._known:
            self._known[key] = len(self.code)
            self.code.append((op, *args, float(number), table))
        return self._known[key]

    def table(self, array):
        if id(array) not in self._table_ids:
            self._kept.append(array)
            contiguous = array.contiguous() if hasattr(array, "contiguous") else np.ascontiguousarray(array)
            self._kept.append(contiguous)
            self._table_ids[id(array)] = len(self.tables)
            self.tables.append(contiguous)
        return self._table_ids[id(array)]


_FUNCTIONS = {}  # name -> function(graph, *args); _trace_functions.py fills it


class Symbol:
    """A number (kind 'f'), an index ('i') or a condition ('b') that is not known yet."""

    __array_priority__ = 1e6
    __slots__ = ("graph", "register", "kind", "name")

    def __init__(self, graph, register, kind, name=None):
        self.graph, self.register, self.kind, self.name = graph, register, kind, name

    # --- what cannot be known while tracing ---
    def _refuse(self, *_):
        raise TypeError(_CONTROL_FLOW.format(who=self.graph.who, what=self.name or "a traced value"))

    __bool__ = __index__ = __int__ = __float__ = __iter__ = __len__ = _refuse
    __hash__ = object.__hash__

    def item(self):
        self._refuse()

    def __repr__(self):
        return f"<{self.name or 'traced value'}>"

    # --- arithmetic ---
    def __add__(self, other):
        return _binary(self.graph, "add", self, other)

    def __radd__(self, other):
        return _binary(self.graph, "add", other, self)

    def __sub__(self, other):
        return _binary(self.graph, "sub", self, other)

    def __rsub__(self, other):
        return _binary(self.graph, "sub", other, self)

    def __mul__(self, other):
        return _binary(self.graph, "mul", self, other)

    def __rmul__(self, other):
        return _binary(self.graph, "mul", other, self)

    def __truediv__(self, other):
        return _divide(self.graph, self, other)

    def __rtruediv__(self, other):
        return _divide(self.graph, other, self)

    def __floordiv__(self, other):
        return _floor_divide(self.graph, self, other)

    def __rfloordiv__(self, other):
        return _floor_divide(self.graph, other, self)

    def __mod__(self, other):
        return _modulo(self.graph, self, other)

    def __rmod__(self, other):
        return _modulo(self.graph, other, self)

    def __pow__(self, exponent):
        return _power(self.graph, self, exponent)

    def __neg__(self):
        return _unary(self, "neg_f", "neg_i")

    def __pos__(self):
        return self

    def __abs__(self):
        return _unary(self, "abs_f", "abs_i")

    # --- comparisons and logic ---
    def __eq__(self, other):
        return _compare(self.graph, "eq", self, other)

    def __ne__(self, other):
        return _compare(self.graph, "ne", self, other)

    def __lt__(self, other):
        return _compare(self.graph, "lt", self, other)

    def __le__(self, other):
        return _compare(self.graph, "le", self, other)

    def __gt__(self, other):
        return _compare(self.graph, "lt", other, self)

    def __ge__(self, other):
        return _compare(self.graph, "le", other, self)

    def __and__(self, other):
        return _logic(self.graph, "and_i", self, other)

    __rand__ = __and__

    def __or__(self, other):
        return _logic(self.graph, "or_i", self, other)

    __ror__ = __or__

    def __xor__(self, other):
        return _logic(self.graph, "xor_i", self, other)

    __rxor__ = __xor__

    def __invert__(self):
        if self.kind != "b":
            raise TypeError(f"{self.graph.who}: ~ takes a condition")
        return Symbol(self.graph, self.graph.emit("not_b", self.register), "b")

    # --- methods that tensors have ---
    def __getattr__(self, name):
        if name in _FUNCTIONS:
            return lambda *args, **kwargs: _FUNCTIONS[name](self.graph, self, *args, **kwargs)
        raise AttributeError(
            f"{self.graph.who}: a traced value has no '{name}'; it knows arithmetic, comparisons and "
            f"{', '.join(sorted(set(_FUNCTIONS)))}"
        )

    def to(self, *args, **_):
        text = str(args[0]) if args else ""
        return _as_int(self) if "int" in text or "long" in text else _as_float(self)

    def float(self):
        return _as_float(self)

    def int(self):
        return _as_int(self)

    long = int
    double = float

    @property
    def device(self):
        return "cpu"

    def __getitem__(self, _):
        raise TypeError(f"{self.graph.who}: a score is one number and cannot be indexed")

    # --- NumPy and PyTorch functions of symbols ---
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs:
            return NotImplemented
        return _call(self.graph, ufunc.__name__, inputs, {})

    def __array_function__(self, func, types, args, kwargs):
        return _call(self.graph, func.__name__, args, kwargs)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _torch_call(func, args, kwargs or {})


def _find(args):
    for value in args:
        if isinstance(value, Symbol):
            return value
        if isinstance(value, (tuple, list)):
            inner = _find(value)
            if inner is not None:
                return inner
    return None


def _torch_call(func, args, kwargs):
    graph = _find(list(args) + list(kwargs.values())).graph
    name = getattr(func, "__name__", str(func))
    if name == "__getitem__":
        return _gather(graph, args[0], args[1])
    return _call(graph, name.strip("_") if name.startswith("__") else name, args, kwargs)


def _call(graph, name, args, kwargs):
    if name not in _FUNCTIONS:
        raise TypeError(
            f"{graph.who}: '{name}' cannot be traced; there are arithmetic, comparisons and "
            f"{', '.join(sorted(set(_FUNCTIONS)))}"
        )
    return _FUNCTIONS[name](graph, *args, **kwargs)


def _lift(graph, value):
    if isinstance(value, Symbol):
        return value
    if isinstance(value, (bool, np.bool_)):
        return Symbol(graph, graph.emit("const_i", number=int(value)), "b")
    if isinstance(value, (numbers.Integral, np.integer)):
        if not -(2**31) <= int(value) < 2**31:
            return Symbol(graph, graph.emit("const_f", number=float(value)), "f")
        return Symbol(graph, graph.emit("const_i", number=int(value)), "i")
    if isinstance(value, numbers.Real):
        return Symbol(graph, graph.emit("const_f", number=float(value)), "f")
    shape = getattr(value, "shape", None)
    if shape is not None and math.prod(shape) == 1:  # a captured scalar
        _refuse_gradient(graph, value)
        return _lift(graph, value.item())
    if shape is not None:
        raise TypeError(
            f"{graph.who}: a captured tensor of shape {tuple(shape)} must be indexed down to one number, "
            "for example bias[head, query, key]"
        )
    raise TypeError(f"{graph.who}: cannot use a {type(value).__name__} in a traced function")


def _as_float(symbol):
    if symbol.kind == "f":
        return symbol
    return Symbol(symbol.graph, symbol.graph.emit("to_f", symbol.register), "f")


def _as_int(symbol):
    if symbol.kind != "f":
        return Symbol(symbol.graph, symbol.register, "i")
    return Symbol(symbol.graph, symbol.graph.emit("to_i", symbol.register), "i")


def _pair(graph, a, b):
    a, b = _lift(graph, a), _lift(graph, b)
    if a.kind == "f" or b.kind == "f":
        return _as_float(a), _as_float(b), "f"
    return a, b, "i"


def _binary(graph, name, a, b):
    a, b, kind = _pair(graph, a, b)
    return Symbol(graph, graph.emit(f"{name}_{kind}", a.register, b.register), kind)


def _divide(graph, a, b):
    a, b = _as_float(_lift(graph, a)), _as_float(_lift(graph, b))
    return Symbol(graph, graph.emit("div_f", a.register, b.register), "f")


def _floor_divide(graph, a, b):
    a, b, kind = _pair(graph, a, b)
    if kind == "i":
        return Symbol(graph, graph.emit("div_i", a.register, b.register), "i")
    return _unary(_divide(graph, a, b), "floor_f", None)


def _modulo(graph, a, b):
    a, b, kind = _pair(graph, a, b)
    if kind == "i":
        return Symbol(graph, graph.emit("mod_i", a.register, b.register), "i")
    return a - _floor_divide(graph, a, b) * b


def _power(graph, base, exponent):
    base = _lift(graph, base)
    if isinstance(exponent, Symbol) or not isinstance(exponent, numbers.Real):
        raise TypeError(f"{graph.who}: the exponent of a power must be a plain number")
    if exponent == 2:
        return base * base
    base = _as_float(base)
    return Symbol(graph, graph.emit("pow_f", base.register, number=float(exponent)), "f")


def _unary(symbol, float_op, int_op):
    graph = symbol.graph
    if symbol.kind != "f" and int_op is not None:
        return Symbol(graph, graph.emit(int_op, symbol.register), "i")
    return Symbol(graph, graph.emit(float_op, _as_float(symbol).register), "f")


def _compare(graph, name, a, b):
    a, b, kind = _pair(graph, a, b)
    return Symbol(graph, graph.emit(f"{name}_{kind}", a.register, b.register), "b")


def _logic(graph, op, a, b):
    a, b = _lift(graph, a), _lift(graph, b)
    if a.kind == "f" or b.kind == "f":
        raise TypeError(f"{graph.who}: & | ^ take conditions or integers")
    return Symbol(graph, graph.emit(op, a.register, b.register), "b" if a.kind == b.kind == "b" else "i")


def _where(graph, condition, a, b):
    condition = _lift(graph, condition)
    a, b = _lift(graph, a), _lift(graph, b)
    if condition.kind == "f":
        condition = condition != 0.0
    if a.kind == "f" or b.kind == "f":
        a, b = _as_float(a), _as_float(b)
        return Symbol(graph, graph.emit("select_f", condition.register, a.register, b.register), "f")
    kind = "b" if a.kind == b.kind == "b" else "i"
    return Symbol(graph, graph.emit("select_i", condition.register, a.register, b.register), kind)


def _refuse_gradient(graph, tensor):
    if getattr(tensor, "requires_grad", False):
        raise TypeError(
            f"{graph.who}: a captured tensor requires a gradient; gradients flow into query, key and value only: pass "
            "tensor.detach(). What is to learn goes into attn_mask of scaled_dot_product_attention, or bias, "
            "alibi_slopes or relative_bias of multihead.attention"
        )


def _gather(graph, array, index):
    """array[i, j, …] with one index per axis."""
    if isinstance(array, Symbol):
        raise TypeError(f"{graph.who}: a traced value cannot be indexed")
    _refuse_gradient(graph, array)
    index = index if isinstance(index, tuple) else (index,)
    shape = tuple(array.shape)
    if len(index) != len(shape):
        raise TypeError(
            f"{graph.who}: a captured tensor of shape {shape} needs {len(shape)} indices to give one number, "
            f"got {len(index)}"
        )
    flat, stride = None, 1
    for size, at in reversed(list(zip(shape, index))):
        at = _lift(graph, at)
        if at.kind == "f":
            raise TypeError(f"{graph.who}: indices are integers; use .int()")
        at = Symbol(graph, graph.emit("bound_i", at.register, number=size), "i")
        part = at if stride == 1 else at * stride
        flat = part if flat is None else part + flat
        stride *= size
    if flat is None:
        return _lift(graph, array.item())
    kind = _kind_of(array)
    op = "gather_f" if kind == "f" else "gather_i"
    return Symbol(graph, graph.emit(op, flat.register, table=graph.table(array)), kind)


def _kind_of(array):
    text = str(array.dtype)
    return "f" if "float" in text else "b" if "bool" in text else "i"
