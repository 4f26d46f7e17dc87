"""The functions of symbols by the names that PyTorch, NumPy and Python's operators have for them."""

from ._trace_symbols import (
    _FUNCTIONS,
    _binary,
    _compare,
    _divide,
    _floor_divide,
    _lift,
    _logic,
    _modulo,
    _power,
    _unary,
    _where,
)


def _clamp(graph, x, min=None, max=None, a_min=None, a_max=None):
    x = _lift(graph, x)
    low, high = (min if min is not None else a_min), (max if max is not None else a_max)
    if low is not None:
        x = _binary(graph, "max", x, low)
    return x if high is None else _binary(graph, "min", x, high)


def _simple(float_op, int_op=None):
    return lambda graph, x, **_: _unary(_lift(graph, x), float_op, int_op)


def _two(name):
    return lambda graph, a, b: _binary(graph, name, a, b)


def _logical_not(graph, x):
    return ~_lift(graph, x)


def _relu(graph, x, *_, **__):
    return _binary(graph, "max", x, 0.0)


def _maximum(name):
    def f(graph, *args):
        if len(args) != 2:
            raise TypeError(f"{graph.who}: reductions over a score make no sense; {name} takes two arguments")
        return _binary(graph, name, *args)

    return f


_FUNCTIONS.update({
    "exp": _simple("exp_f"),
    "log": _simple("log_f"),
    "sqrt": _simple("sqrt_f"),
    "tanh": _simple("tanh_f"),
    "sigmoid": _simple("sigmoid_f"),
    "sin": _simple("sin_f"),
    "cos": _simple("cos_f"),
    "erf": _simple("erf_f"),
    "floor": _simple("floor_f"),
    "round": _simple("round_f"),
    "abs": _simple("abs_f", "abs_i"),
    "absolute": _simple("abs_f", "abs_i"),
    "neg": _simple("neg_f", "neg_i"),
    "negative": _simple("neg_f", "neg_i"),
    "square": lambda graph, x: _lift(graph, x) * _lift(graph, x),
    "relu": _relu,
    "pow": _power,
    "power": _power,
    "float_power": _power,
    "minimum": _two("min"),
    "maximum": _two("max"),
    "min": _maximum("min"),
    "max": _maximum("max"),
    "clamp": _clamp,
    "clip": _clamp,
    "where": _where,
    "add": _two("add"),
    "sub": _two("sub"),
    "subtract": _two("sub"),
    "mul": _two("mul"),
    "multiply": _two("mul"),
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "truediv": _divide,
    "rsub": lambda graph, a, b: _binary(graph, "sub", b, a),
    "floor_divide": _floor_divide,
    "floordiv": _floor_divide,
    "remainder": _modulo,
    "mod": _modulo,
    "eq": lambda graph, a, b: _compare(graph, "eq", a, b),
    "equal": lambda graph, a, b: _compare(graph, "eq", a, b),
    "ne": lambda graph, a, b: _compare(graph, "ne", a, b),
    "not_equal": lambda graph, a, b: _compare(graph, "ne", a, b),
    "lt": lambda graph, a, b: _compare(graph, "lt", a, b),
    "less": lambda graph, a, b: _compare(graph, "lt", a, b),
    "le": lambda graph, a, b: _compare(graph, "le", a, b),
    "less_equal": lambda graph, a, b: _compare(graph, "le", a, b),
    "gt": lambda graph, a, b: _compare(graph, "lt", b, a),
    "greater": lambda graph, a, b: _compare(graph, "lt", b, a),
    "ge": lambda graph, a, b: _compare(graph, "le", b, a),
    "greater_equal": lambda graph, a, b: _compare(graph, "le", b, a),
    "logical_and": lambda graph, a, b: _logic(graph, "and_i", a, b),
    "logical_or": lambda graph, a, b: _logic(graph, "or_i", a, b),
    "logical_not": _logical_not,
    "bitwise_and": lambda graph, a, b: _logic(graph, "and_i", a, b),
    "bitwise_or": lambda graph, a, b: _logic(graph, "or_i", a, b),
    "and": lambda graph, a, b: _logic(graph, "and_i", a, b),
    "or": lambda graph, a, b: _logic(graph, "or_i", a, b),
    "invert": _logical_not,
})
for _name in ("add", "sub", "mul", "and", "or"):  # 2 - tensor calls __rsub__ and the like
    _FUNCTIONS.setdefault("r" + _name, lambda graph, a, b, _f=_FUNCTIONS[_name]: _f(graph, b, a))
