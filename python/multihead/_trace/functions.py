"""Functions of symbols, by their names in PyTorch, NumPy and Python's operators.

Each matches PyTorch, dtype and gradient included; an argument that is not listed is an error.
"""

import math

import numpy as np

from . import kinds
from .values import Symbol, by_names, cast, common, constant, lift, operands

_INT, _FLOAT = kinds.INTEGERS, kinds.FLOATS


def no_bool(graph, kind, name):
    if kind == "b":
        graph.refuse(f"'{name}' takes numbers; PyTorch has none of conditions")


def _join(graph, op, a, b):
    """Combines two conditions; and_masks() starts with one that is always true."""
    neutral = {"and_i": 1, "or_i": 0}.get(op)
    for x, other in ((a, b), (b, a)):
        known, *_, number, _, _ = graph.code[x.register]
        if known == "const_i" and number == neutral:
            return other
    return graph.condition(op, a, b)


def _alternatives(name, on_bool, on_integer, on_float):
    """A function of two values by their common type, or None if PyTorch has none."""

    def f(graph, input, other):
        kind, a, b = operands(graph, input, other)
        if kind == "b":
            if on_bool is None:
                no_bool(graph, kind, name)
            return _join(graph, on_bool, a, b)
        if kind in _INT:
            return graph.integer(on_integer, kind, a, b)
        if on_float is None:
            graph.refuse(f"'{name}' takes conditions or integers")
        return graph.number(on_float, kind, a, b)

    return f


_sum, product = _alternatives("add", "or_i", "add_i", "add_f"), _alternatives("mul", "and_i", "mul_i", "mul_f")


def _scaled(graph, input, other, alpha, operation):
    """operation(input, alpha * other), in their common type and rounded once."""
    kind, a, b = operands(graph, input, other)
    wide = "f32" if kind in ("f16", "bf16") else kind
    a, b = cast(graph, a, wide), cast(graph, b, wide)
    return cast(graph, operation(graph, a, product(graph, b, constant(graph, alpha, wide))), kind)


def add(graph, input, other, *, alpha=1):
    return _sum(graph, input, other) if alpha == 1 else _scaled(graph, input, other, alpha, _sum)


def _sub(graph, input, other, *, alpha=1):
    input, other = lift(graph, input), lift(graph, other)
    if any((x.kind == "b") if isinstance(x, Symbol) else isinstance(x, (bool, np.bool_)) for x in (input, other)):
        graph.refuse("'sub' takes numbers; use ~ or ^ of conditions, as in PyTorch")
    if alpha != 1:
        return _scaled(graph, input, other, alpha, _sub)
    kind, a, b = operands(graph, input, other)
    return graph.integer("sub_i", kind, a, b) if kind in _INT else graph.number("sub_f", kind, a, b)


def _as_float(graph, value):
    """The argument converted to a floating-point type."""
    value = lift(graph, value)
    kind = common(graph, value)
    return cast(graph, value, kind if kind in _FLOAT else graph.default)


def _nonzero(graph, divisor):
    op, *_, number, _, _ = graph.code[divisor.register]
    if op == "const_i" and number != 0:
        return divisor
    return graph.integer("nonzero_i", divisor.kind, divisor)


def _true_divide(graph, input, other):
    kind, a, b = operands(graph, input, other)
    if kind not in _FLOAT:
        kind, a, b = graph.default, cast(graph, a, graph.default), cast(graph, b, graph.default)
    return graph.number("div_f", kind, a, b)


def _quotient(graph, input, other, name, truncate):
    kind, a, b = operands(graph, input, other)
    no_bool(graph, kind, name)
    if kind in _FLOAT:
        a, b = _detach(graph, a), _detach(graph, b)
        if not truncate:
            return graph.number("floordiv_f", kind, a, b)
        return graph.number("trunc_f", kind, graph.number("div_f", kind, a, b))
    b = _nonzero(graph, b)
    whole = graph.integer("div_i", kind, a, b)
    if not truncate:
        return whole
    zero = constant(graph, 0, kind)
    inexact = graph.condition("ne_i", graph.integer("mod_i", kind, a, b), zero)
    below = graph.condition("ne_i", graph.condition("lt_i", a, zero), graph.condition("lt_i", b, zero))
    up = graph.condition("and_i", inexact, below)
    return graph.integer("add_i", kind, whole, Symbol(graph, up.register, kind))


def _div(graph, input, other, *, rounding_mode=None):
    if rounding_mode is None:
        return _true_divide(graph, input, other)
    if rounding_mode not in ("floor", "trunc"):
        graph.refuse(f"'div': rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}")
    return _quotient(graph, input, other, "div", rounding_mode == "trunc")


def _floor_divide(graph, input, other):
    return _quotient(graph, input, other, "floor_divide", False)


def _zero_of_divisor(graph, kind, rest, divisor):
    """The rest, whose zeros have the sign of the divisor in Python and NumPy, that of the dividend in PyTorch."""
    zero = constant(graph, 0.0, kind)
    positive = graph.number("add_f", kind, rest, zero)
    op, *_, number, _, _ = graph.code[divisor.register]
    if op == "const_f" and number > 0:
        return positive
    turned = graph.number("add_f", kind, graph.number("neg_f", kind, rest), zero)
    below = graph.condition("lt_f", divisor, zero)
    return select(graph, kind, below, graph.number("neg_f", kind, turned), positive)


def _remainder(graph, input, other):
    kind, a, b = operands(graph, input, other)
    no_bool(graph, kind, "remainder")
    if kind in _FLOAT:
        rest = graph.number("mod_f", kind, a, b)
        return rest if graph.typed else _zero_of_divisor(graph, kind, rest, b)
    return graph.integer("mod_i", kind, a, _nonzero(graph, b))


def _fmod(graph, input, other):
    kind, a, b = operands(graph, input, other)
    no_bool(graph, kind, "fmod")
    if kind in _FLOAT:
        return graph.number("fmod_f", kind, a, b)
    return _sub(graph, a, product(graph, _quotient(graph, a, b, "fmod", True), b))


def power(graph, input, exponent):
    base, exponent = lift(graph, input), lift(graph, exponent)
    kind = common(graph, base, exponent)
    no_bool(graph, kind, "pow")
    if kind in _INT:
        return _integer_power(graph, cast(graph, base, kind), exponent, kind)
    base = cast(graph, base, kind)
    if isinstance(exponent, Symbol):
        return graph.number("power_f", kind, base, cast(graph, exponent, kind))
    if exponent == 2:
        return graph.number("mul_f", kind, base, base)
    return graph.number("pow_f", kind, base, number=float(exponent))


def _integer_power(graph, base, exponent, kind):
    if isinstance(exponent, Symbol):
        graph.refuse("'pow' of integers needs a plain number as its exponent; for 2 ** x write 2.0 ** x or 1 << x")
    if not 0 <= exponent <= 62:
        graph.refuse(f"'pow': the power of an integer must be from 0 to 62, got {exponent}")
    result = constant(graph, 1, kind)
    for _ in range(int(exponent)):
        result = graph.integer("mul_i", kind, result, base)
    return result


_minimum = _alternatives("minimum", "and_i", "min_i", "min_f")
_maximum = _alternatives("maximum", "or_i", "max_i", "max_f")


def _clamp(graph, input, min=None, max=None, *, a_min=None, a_max=None):
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    bounds = [None if x is None else lift(graph, x) for x in (low, high)]
    present = [x for x in bounds if x is not None]
    if not present:
        graph.refuse("'clamp' needs a bound")
    kind, x, *rest = operands(graph, input, *present)
    no_bool(graph, kind, "clamp")
    if kind in _INT:
        if low is not None:
            x = graph.integer("max_i", kind, x, rest[0])
        return x if high is None else graph.integer("min_i", kind, x, rest[-1])
    shares = any(isinstance(bound, Symbol) for bound in present)
    return graph.number("clamp_f", kind, x, rest[0] if low is not None else None,
                        rest[-1] if high is not None else None, number=float(shares))  # fmt: skip


def _reduction(name, pair):
    def f(graph, *args):
        if len(args) != 2:
            graph.refuse(f"reductions over a score make no sense; {name} takes two arguments")
        return pair(graph, *args)

    return f


def where(graph, condition, input, other):
    condition = lift(graph, condition)
    if isinstance(condition, Symbol) and condition.kind != "b":
        graph.refuse(f"'where' takes a condition first, got {kinds.DTYPES[condition.kind]}")
    kind, a, b = operands(graph, input, other)
    return select(graph, kind, cast(graph, condition, "b"), a, b)


def select(graph, kind, condition, a, b):
    if kind in _FLOAT:
        return graph.number("select_f", kind, condition, a, b)
    return Symbol(graph, graph.emit("select_i", condition.register, a.register, b.register), kind)


def _masked_fill(graph, input, mask, value):
    x, mask, value = lift(graph, input), lift(graph, mask), lift(graph, value)
    if not isinstance(mask, Symbol) or mask.kind != "b":
        graph.refuse("'masked_fill' takes a condition as its mask")
    return select(graph, x.kind, mask, cast(graph, value, x.kind), x)


def _compare(name, swapped=False):
    def f(graph, input, other):
        kind, a, b = operands(graph, input, other)
        if swapped:
            a, b = b, a
        return graph.condition(f"{name}_{'f' if kind in _FLOAT else 'i'}", a, b)

    return f


def logical(op):
    return lambda graph, input, other: _join(
        graph, op, cast(graph, lift(graph, input), "b"), cast(graph, lift(graph, other), "b")
    )


def _logical_not(graph, input):
    return graph.condition("not_b", cast(graph, lift(graph, input), "b"))


def _bitwise_not(graph, input):
    x = lift(graph, input)
    if x.kind == "b":
        return graph.condition("not_b", x)
    if x.kind in _FLOAT:
        graph.refuse("~ takes a condition or an integer")
    ones = Symbol(graph, graph.emit("const_i", number=-1), x.kind)
    return graph.integer("xor_i", x.kind, x, ones)


def _shift(name, op):
    def f(graph, input, other):
        kind, a, b = operands(graph, input, other)
        if kind not in ("i64", "i32"):  # the shifts of narrow ones depend on their widths
            graph.refuse(f"'{name}' takes 32- and 64-bit integers, got {kinds.DTYPES[kind]}")
        if kind == "i32" and graph.code[b.register][0] != "const_i":
            graph.refuse(f"'{name}' of int32 needs a plain number of bits")
        return graph.integer(op, kind, a, b)

    return f


def _unary(op):
    def f(graph, input):
        x = _as_float(graph, input)
        return graph.number(op, x.kind, x)

    return f


def _whole(op):
    """Rounding functions, which leave integers unchanged."""

    def f(graph, input):
        x = lift(graph, input)
        no_bool(graph, x.kind, op[:-2])
        return x if x.kind in _INT else graph.number(op, x.kind, x)

    return f


def _neg(graph, input):
    x = lift(graph, input)
    no_bool(graph, x.kind, "neg")
    return graph.integer("neg_i", x.kind, x) if x.kind in _INT else graph.number("neg_f", x.kind, x)


def _positive(graph, input):
    no_bool(graph, lift(graph, input).kind, "positive")
    return lift(graph, input)


def _abs(graph, input):
    x = lift(graph, input)
    no_bool(graph, x.kind, "abs")
    if x.kind == "u8":
        return x
    return graph.integer("abs_i", x.kind, x) if x.kind in _INT else graph.number("abs_f", x.kind, x)


def _sign(graph, input):
    x = lift(graph, input)
    if x.kind == "b":
        return x
    if x.kind in _FLOAT:
        return graph.number("sign_f", x.kind, x)
    zero = constant(graph, 0, x.kind)
    above, below = graph.condition("lt_i", zero, x), graph.condition("lt_i", x, zero)
    return Symbol(graph, graph.emit("sub_i", above.register, below.register), x.kind)


def _numpy_sign(graph, input):
    """NumPy's, which is NaN where PyTorch's is 0."""
    x = lift(graph, input)
    no_bool(graph, x.kind, "numpy.sign")
    sign = _sign(graph, x)
    return sign if x.kind not in _FLOAT else select(graph, x.kind, _isnan(graph, x), _detach(graph, x), sign)


def _reciprocal(graph, input):
    x = _as_float(graph, input)
    return graph.number("div_f", x.kind, constant(graph, 1.0, x.kind), x)


def _frac(graph, input):
    x = lift(graph, input)
    if x.kind not in _FLOAT:
        graph.refuse("'frac' takes numbers")
    return graph.number("sub_f", x.kind, x, graph.number("trunc_f", x.kind, _detach(graph, x)))


def _detach(graph, input):
    x = lift(graph, input)
    if not isinstance(x, Symbol) or x.kind not in _FLOAT:
        return x
    return graph.number("detach_f", x.kind, x)


def _isnan(graph, input):
    x = lift(graph, input)
    return graph.condition("ne_f", x, x) if x.kind in _FLOAT else constant(graph, False, "b")


def _isinf(graph, input):
    x = lift(graph, input)
    if x.kind not in _FLOAT:
        return constant(graph, False, "b")
    return graph.condition("eq_f", graph.number("abs_f", x.kind, x), constant(graph, math.inf, x.kind))


def _isfinite(graph, input):
    x = lift(graph, input)
    if x.kind not in _FLOAT:
        return constant(graph, True, "b")
    return graph.condition("lt_f", graph.number("abs_f", x.kind, x), constant(graph, math.inf, x.kind))


_left_shift, _right_shift = _shift("<<", "shl_i"), _shift(">>", "shr_i")
_UNARY = "exp exp2 expm1 log log2 log1p sqrt rsqrt tanh sigmoid sin cos tan erf"
_WHOLE = "floor ceil trunc round"
TABLE = {
    **{name: _unary(name + "_f") for name in _UNARY.split()},
    **{name: _whole(name + "_f") for name in _WHOLE.split()},
    **by_names({
        "add": add,
        "sub subtract": _sub,
        "rsub": lambda graph, a, b: _sub(graph, b, a),
        "radd": lambda graph, a, b: add(graph, b, a),
        "mul multiply rmul": product,
        "div divide": _div,
        "true_divide truediv": _true_divide,
        "rtruediv rdiv": lambda graph, a, b: _true_divide(graph, b, a),
        "floor_divide floordiv": _floor_divide,
        "rfloordiv": lambda graph, a, b: _floor_divide(graph, b, a),
        "remainder mod": _remainder,
        "rmod": lambda graph, a, b: _remainder(graph, b, a),
        "fmod": _fmod,
        "pow power": power,
        "rpow": lambda graph, a, b: power(graph, b, a),
        "minimum": _minimum,
        "maximum": _maximum,
        "min": _reduction("min", _minimum),
        "max": _reduction("max", _maximum),
        "clamp clip": _clamp,
        "clamp_min": lambda graph, input, min: _clamp(graph, input, min),
        "clamp_max": lambda graph, input, max: _clamp(graph, input, None, max),
        "where": where,
        "masked_fill": _masked_fill,
        "eq equal": _compare("eq"),
        "ne not_equal": _compare("ne"),
        "lt less": _compare("lt"),
        "le less_equal": _compare("le"),
        "gt greater": _compare("lt", swapped=True),
        "ge greater_equal": _compare("le", swapped=True),
        "logical_and": logical("and_i"),
        "logical_or": logical("or_i"),
        "logical_xor": logical("xor_i"),
        "logical_not": _logical_not,
        "bitwise_and and rand": _alternatives("and", "and_i", "and_i", None),
        "bitwise_or or ror": _alternatives("or", "or_i", "or_i", None),
        "bitwise_xor xor rxor": _alternatives("xor", "xor_i", "xor_i", None),
        "bitwise_not invert": _bitwise_not,
        "bitwise_left_shift left_shift lshift": _left_shift,
        "bitwise_right_shift right_shift rshift": _right_shift,
        "rlshift": lambda graph, a, b: _left_shift(graph, b, a),
        "rrshift": lambda graph, a, b: _right_shift(graph, b, a),
        "rint": _whole("round_f"),
        "neg negative": _neg,
        "positive": _positive,
        "abs absolute": _abs,
        "sign sgn": _sign,
        "numpy_sign": _numpy_sign,
        "square": lambda graph, input: power(graph, input, 2),
        "reciprocal": _reciprocal,
        "frac": _frac,
        "detach": _detach,
        "isnan": _isnan,
        "isinf": _isinf,
        "isfinite": _isfinite,
    }),
}  # fmt: skip
