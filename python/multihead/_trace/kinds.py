"""Element types of traced values, and PyTorch's type promotion."""

import numbers

import numpy as np

# The types of wrap_i in multihead/ops/attention/program/integers-inl.h.
WRAPS = {"i8": 0, "u8": 1, "i16": 2}
INTEGERS = {"u8": (0, 255), "i8": (-128, 127), "i16": (-(2**15), 2**15 - 1), "i32": (-(2**31), 2**31 - 1)}
INTEGERS["i64"] = INTEGERS["i32"]  # the kernel's integers; beyond 32 bits it raises OverflowError
FLOATS = ("f16", "bf16", "f32", "f64")
NAMES = {
    "bool": "b", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
}  # fmt: skip
DTYPES = {kind: name for name, kind in NAMES.items()}
_OTHER_NAMES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}


def category(kind):
    """0 bool, 1 integer, 2 float: promotion never lowers it."""
    return 0 if kind == "b" else 1 if kind in INTEGERS else 2


def promote(a, b):
    """The type of an operation on two tensors."""
    if a == b:
        return a
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if a in INTEGERS:
        order = ["u8", "i8", "i16", "i32", "i64"]
        low, high = sorted((a, b), key=order.index)
        return "i16" if (low, high) == ("u8", "i8") else high
    return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=FLOATS.index)


def of_dtype(dtype, who):
    """The type named by torch.int32, numpy.int32, mh.float32 or "int32"."""
    name = str(dtype).rsplit(".", 1)[-1].strip("'>")
    name = DTYPES.get(name, _OTHER_NAMES.get(name, name))
    if name not in NAMES:
        raise TypeError(f"{who}: a traced value cannot be {dtype}; there are {', '.join(NAMES)}")
    return NAMES[name]


def is_number(value):
    return isinstance(value, (numbers.Real, np.bool_))


def category_of_number(value):
    return 0 if isinstance(value, (bool, np.bool_)) else 1 if isinstance(value, numbers.Integral) else 2


def rounded(value, kind):
    """A Python number as an element of that type."""
    if kind == "f64":
        return float(value)
    with np.errstate(over="ignore"):
        if kind == "f16":
            return float(np.float16(value))
        x = np.float32(value)
    if kind == "bf16" and np.isfinite(x):
        bits = int(x.view(np.uint32))
        return float(np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32))
    return float(x)
