"""Every operation of traced functions has PyTorch's meaning: element types, corners, gradients; or it is refused."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.nn.attention.flex_attention")

import multihead.torch as mt  # noqa: E402
from flex_expressions import by_definition, compare, traced  # noqa: E402

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")


def test_random_expressions():
    outcomes = [compare(seed, 1 + seed % 4) for seed in range(200)]
    wrong = [(text, found) for outcome, text, found in outcomes if outcome == "differ"]
    assert not wrong, wrong
    assert sum(outcome == "agree" for outcome, _, _ in outcomes) > 80


CORNERS = torch.tensor([NAN, 0.0, -0.0, INF, -INF, 1.0, -1.0, 0.5, 2.5, -3.0, 1e30, -1e30])
FUNCTIONS = {
    "abs": torch.abs, "sign": torch.sign, "neg": torch.neg, "square": torch.square, "relu": torch.relu,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p,
    "log2": torch.log2, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "erf": torch.erf,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "frac": torch.frac,
    "silu": F.silu, "gelu": F.gelu, "softplus": F.softplus, "elu": F.elu, "leaky_relu": F.leaky_relu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus 2": lambda x: F.softplus(x, 2, 5),
    "clamp": lambda x: x.clamp(-1, 1), "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "clamp_max": lambda x: torch.clamp_max(x, 1), "clamp of tensors": lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(1.0)),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.0)), "minimum": lambda x: torch.minimum(x, torch.tensor(1.0)),
    "max of itself": lambda x: torch.maximum(x, x * 1.0), "min and NaN": lambda x: torch.minimum(torch.tensor(1.0), x),
    "where": lambda x: torch.where(x > 0, x, -1.0), "where of log": lambda x: torch.where(x > 0, torch.log(x), 0.0),
    "where of sqrt": lambda x: torch.where(x > 0, x, torch.sqrt(x)), "times inf": lambda x: x * INF,
    "masked_fill": lambda x: x.masked_fill(x < 0, -INF),
    "** 0": lambda x: x**0, "** 0.5": lambda x: x**0.5, "** -0.5": lambda x: x**-0.5, "** 1": lambda x: x**1,
    "** 1.5": lambda x: x**1.5, "** 2": lambda x: x**2, "** 3": lambda x: x**3, "** -1": lambda x: x**-1,
    "** -2": lambda x: x**-2, "** 2.5": lambda x: x**2.5, "2.0 **": lambda x: 2.0**x, "0.0 **": lambda x: 0.0**x,
    "x ** x": lambda x: x.abs() ** x, "% 0.7": lambda x: x % 0.7, "% -0.7": lambda x: x % -0.7, "% 0": lambda x: x % 0.0,
    "fmod": lambda x: torch.fmod(x, 0.7), "0.7 % x": lambda x: torch.tensor(0.7) % x, "1 / x": lambda x: 1 / x,
    "div floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"), "div floor 0": lambda x: torch.div(x, 0.0, rounding_mode="floor"),
    "div trunc": lambda x: torch.div(x, -0.7, rounding_mode="trunc"), "x / x": lambda x: x / x, "x - x": lambda x: x - x,
    "half": lambda x: x.half().float(), "bfloat16": lambda x: x.bfloat16() * 1.1, "int": lambda x: x.clamp(-9, 9).int() / 2,
    "isnan": lambda x: torch.where(torch.isnan(x), 7.0, x), "isinf": lambda x: x.isinf() * 2.0, "isfinite": lambda x: x.isfinite() * 2.0,
    "logical_not": lambda x: torch.logical_not(x) * 2.0, "detach": lambda x: x * x.detach(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_corners_of_functions_and_gradients(name):
    function = lambda s, b, h, q, k: FUNCTIONS[name](s)
    if name == "int":  # what a NaN becomes is nobody's promise
        corners = CORNERS[1:]
    elif name == "gelu":  # PyTorch's AVX-512 loop has NaN at infinity, its scalar one infinity as we
        corners = CORNERS[CORNERS != INF]
    else:
        corners = CORNERS
    scores = corners.view(1, 1, 1, -1).clone().requires_grad_()
    d = torch.ones_like(scores)
    y, dx, _ = traced(function, scores, d)
    want, d_want, _ = by_definition(function, scores, d, [])
    torch.testing.assert_close(y, want, atol=1e-6, rtol=3e-6, equal_nan=True)
    if d_want is not None:
        torch.testing.assert_close(dx, d_want, atol=1e-6, rtol=3e-6, equal_nan=True)


INTEGERS = {
    "to(dtype=int32)": lambda i, j: ((i - j) * 0.37).to(dtype=torch.int32),
    "to(bool)": lambda i, j: (i - j).to(torch.bool),
    "to(uint8)": lambda i, j: (i - j).to(torch.uint8),
    "to(int8)": lambda i, j: (i * 50 - j).to(torch.int8),
    "int8 wraps": lambda i, j: i.to(torch.int8) * 20 + j.to(torch.int8),
    "bool + bool": lambda i, j: (i > j) + (i > 2),
    "bool * bool": lambda i, j: (i > j) * (i > 2),
    "bool + 1": lambda i, j: (i > j) + 1,
    "-7 // 2": lambda i, j: (i - j) // 2,
    "-7 % -2": lambda i, j: (i - j) % -2,
    "div trunc": lambda i, j: torch.div(i - j, 2, rounding_mode="trunc"),
    "fmod": lambda i, j: torch.fmod(i - j, 3),
    "7 // (i + 1)": lambda i, j: 7 // (i + 1),
    "i / 3": lambda i, j: i / 3,
    "~int": lambda i, j: ~(i - j),
    "~bool": lambda i, j: ~(i > j),
    "xor": lambda i, j: (i ^ j) & 6,
    "shifts": lambda i, j: (i << 2) + (j >> 1) + ((i - j) >> 1),
    "1 << i": lambda i, j: 1 << i,
    "int ** 3": lambda i, j: (i - j) ** 3,
    "clamp to float": lambda i, j: (i - j).clamp(-1.5, 2),
    "clamp": lambda i, j: (i - j).clamp(min=-2, max=2),
    "compare 2.5": lambda i, j: (i - j) > 2.5,
    "sign": lambda i, j: torch.sign(i - j),
    "round": lambda i, j: torch.round((i - j) / 2),
    "uint8 + int8": lambda i, j: i.byte() + (j - 200).char(),
    "in place": lambda i, j: i.__iadd__(j).__imul__(2),
    "x.where": lambda i, j: (i - j).where(i > 2, j),
    "condition.where": lambda i, j: (i > j).where(j > 2, i < 3),
    "captured.where": lambda i, j: torch.tensor(5).where(i > j, i),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_conditions(name):
    function = lambda s, b, h, q, k: s + INTEGERS[name](q.clone(), k)
    scores, d = torch.zeros(1, 1, 7, 9), torch.zeros(1, 1, 7, 9)
    y, _, _ = traced(function, scores, d)
    want = torch.stack([torch.stack([(0.0 + INTEGERS[name](torch.tensor(i), torch.tensor(j))).float() for j in range(9)]) for i in range(7)])
    assert torch.equal(y[0, 0], want)


REFUSED = {
    "an unknown operation": (lambda s, b, h, q, k: torch.special.bessel_j0(s), "bessel_j0"),
    "an unknown argument": (lambda s, b, h, q, k: torch.round(s, decimals=2), "round"),
    "out=": (lambda s, b, h, q, k: torch.exp(s, out=torch.ones(())), "exp"),
    "a complex type": (lambda s, b, h, q, k: s.to(torch.complex64), "complex64"),
    "uint16": (lambda s, b, h, q, k: s.to(torch.uint16), "uint16"),
    "1 - condition": (lambda s, b, h, q, k: s * (1 - (q > k)), "sub"),
    "-condition": (lambda s, b, h, q, k: s * -(q > k), "neg"),
    "where of an integer": (lambda s, b, h, q, k: torch.where(q, s, 0.0), "condition"),
    "& of numbers": (lambda s, b, h, q, k: s & 1, "integers"),
    "a wide constant": (lambda s, b, h, q, k: s * (q < 2**40), "32 bits"),
    "a number too large for int8": (lambda s, b, h, q, k: s * (q.char() < 300), "int8"),
    "silu of an integer": (lambda s, b, h, q, k: s + F.silu(q), "silu"),
    "another device": (lambda s, b, h, q, k: s.to("cuda"), "cuda"),
    "a dimension": (lambda s, b, h, q, k: s.new_ones(3), "size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_exactly_is_refused_by_name(name):
    function, word = REFUSED[name]
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(TypeError, match=word):
        mt.flex_attention(q, q, q, function)


def test_axes_of_vectors_are_pytorchs():
    q, rows = torch.randn(1, 2, 5, 8), torch.randn(2, 3)
    want = mt.flex_attention(q, q, q, lambda s, b, h, i, j: s + rows.sum(1)[h])
    for same in (lambda v: v.sum(0), lambda v: v.sum(-1), lambda v: v.sum(()), lambda v: v.unsqueeze(0).sum((0, 1))):
        assert torch.equal(mt.flex_attention(q, q, q, lambda s, b, h, i, j: s + same(rows[h])), want)  # noqa: B023
    for wrong in (lambda v: v.sum(1), lambda v: v.sum(-2), lambda v: (v > 0).any(3), lambda v: v.squeeze(4).sum()):
        with pytest.raises(IndexError, match=r"axis .* must be in \[-1, 0\]"):
            mt.flex_attention(q, q, q, lambda s, b, h, i, j: s * wrong(rows[h]))  # noqa: B023
    with pytest.raises(TypeError, match=r"named twice, in \(0, -1\)"):
        mt.flex_attention(q, q, q, lambda s, b, h, i, j: s + rows[h].sum((0, -1)))


def test_integers_that_leave_32_bits_or_are_divided_by_zero_are_told():
    q = torch.randn(1, 2, 300, 8)
    big = torch.tensor([2**40])
    cases = [
        (lambda s, b, h, i, j: s * (i * 100_000_000 > 5), OverflowError),
        (lambda s, b, h, i, j: s * ((i * 1e9).long() > 5), OverflowError),
        (lambda s, b, h, i, j: s + 7 // (i - j), ZeroDivisionError),
        (lambda s, b, h, i, j: s + 7 % i, ZeroDivisionError),
        (lambda s, b, h, i, j: s * (i < big[b]), ValueError),
    ]
    for function, error in cases:
        with pytest.raises(error):
            mt.flex_attention(q, q, q, function)
    mt.flex_attention(q[:, :, :8], q[:, :, :8], q[:, :, :8], lambda s, b, h, i, j: s * (i * 100_000_000 > 5))
