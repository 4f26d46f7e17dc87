"""Element types, devices and new tensors of a traced value's type."""

from . import kinds
from .functions import power
from .values import Symbol, by_names, cast, lift


def _to(graph, input, *args, dtype=None, device=None, non_blocking=False, copy=False, memory_format=None):
    """x.to(dtype), x.to(device), x.to(device, dtype), x.to(other); flags are ignored."""
    x = lift(graph, input)
    for arg in args:
        if isinstance(arg, bool):
            continue
        if hasattr(arg, "kind") and isinstance(arg, Symbol):
            dtype = arg.kind
        elif hasattr(arg, "device") and hasattr(arg, "dtype"):  # a captured tensor
            device, dtype = arg.device, arg.dtype
        elif type(arg).__name__ == "dtype" or isinstance(arg, type):
            dtype = arg
        else:
            device = arg
    if device is not None and str(device).split(":")[0] != "cpu":
        graph.refuse(f"a traced value cannot be moved to {device}")
    return x if dtype is None else cast(graph, x, _kind(graph, dtype))


def _kind(graph, dtype):
    kind = dtype if dtype in kinds.DTYPES else kinds.of_dtype(dtype, graph.who)
    if graph.typed or kind not in kinds.FLOATS:
        return kind
    if kind in ("f16", "bf16"):
        graph.refuse(f"{kinds.DTYPES[kind]} cannot be traced here; numbers have the dtype of the computation")
    return graph.score


def _type(graph, input, dtype):
    return _to(graph, input, dtype)


def _conversion(kind):
    return lambda graph, input: cast(graph, lift(graph, input), _kind(graph, kind))


def _type_as(graph, input, other):
    return cast(graph, lift(graph, input), lift(graph, other).kind)


def _filled(graph, size, value, kind, device, requires_grad, **ignored):
    if tuple(size if isinstance(size, (tuple, list)) else (size,)) != ():
        graph.refuse(f"a traced value is one number; size must be (), got {size}")
    unknown = set(ignored) - {"layout", "pin_memory", "memory_format"}
    if unknown or requires_grad or (device is not None and str(device).split(":")[0] != "cpu"):
        graph.refuse("a new tensor must be on the CPU and without a gradient")
    return cast(graph, lift(graph, value), kind)


def _new(value=None):
    def f(graph, input, size=(), *args, fill_value=None, dtype=None, device=None, requires_grad=False, **rest):
        number = value
        if value is None:
            (number,) = args if args else (fill_value,)
        kind = lift(graph, input).kind if dtype is None else _kind(graph, dtype)
        return _filled(graph, size, number, kind, device, requires_grad, **rest)

    return f


def _like(value=None):
    def f(graph, input, *args, fill_value=None, dtype=None, device=None, requires_grad=False, **rest):
        return _new(value)(graph, input, (), *args, fill_value=fill_value, dtype=dtype, device=device,
                           requires_grad=requires_grad, **rest)  # fmt: skip

    return f


def _same(graph, input, *, memory_format=None):
    """A separate tensor, not affected by in-place changes."""
    x = lift(graph, input)
    return Symbol(graph, x.register, x.kind)


_CONVERSIONS = {
    "bool": "b", "byte": "u8", "char": "i8", "short": "i16", "int": "i32", "long": "i64", "half": "f16",
    "bfloat16": "bf16", "float": "f32", "double": "f64",
}  # fmt: skip
TABLE = {
    **{name: _conversion(kind) for name, kind in _CONVERSIONS.items()},
    **by_names({
        "to": _to,
        "type": _type,
        "type_as": _type_as,
        "new_ones": _new(1),
        "new_zeros": _new(0),
        "new_full": _new(),
        "ones_like": _like(1),
        "zeros_like": _like(0),
        "full_like": _like(),
        "clone contiguous cpu": _same,
        "float_power": lambda graph, input, exponent: power(graph, _conversion("f64")(graph, input), exponent),
    }),
}  # fmt: skip
