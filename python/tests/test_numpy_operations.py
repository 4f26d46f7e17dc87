"""NumPy's operators and functions of Tensors: the library's own with a gradient, or an error."""

import operator

import numpy as np
import pytest

import multihead as mh

OPERATORS = {
    "add": (operator.add, lambda a, b: (np.ones_like(a + b), np.ones_like(a + b))),
    "sub": (operator.sub, lambda a, b: (np.ones_like(a + b), -np.ones_like(a + b))),
    "mul": (operator.mul, lambda a, b: (b + 0 * a, a + 0 * b)),
    "truediv": (operator.truediv, lambda a, b: (1 / b + 0 * a, -a / b**2 + 0 * b)),
}
UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide}
FLOATS = ("float16", "float32", "float64", "longdouble")
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def scalars():
    yield "int", 3
    yield "float", 0.75
    yield "bool", True
    for name in FLOATS + WHOLE:
        yield f"numpy {name}", np.dtype(name).type(1 if name == "bool" else 3)


def arrays(shape):
    for name in FLOATS + WHOLE + ("complex64", "object", "U1"):
        yield f"{'0-d' if shape == () else 'array'} {name}", np.full(shape, "3" if name == "U1" else 1).astype(name)


def tensor(values, dtype):
    return mh.tensor(np.asarray(values).astype(dtype), requires_grad=True)


def outcome(function, w, reference):
    """Runs the function under a Tape: 'right' or 'refused'; anything else fails."""
    w.grad = None
    with mh.Tape() as tape:
        try:
            result = function()
        except (TypeError, ValueError):
            return "refused"
        assert isinstance(result, mh.Tensor), f"a {type(result).__name__} without gradient"
        tape.backward(mh.sum(result))
    value, gradient = reference
    np.testing.assert_allclose(np.asarray(result), value, rtol=1e-5)
    assert w.grad is not None, "no gradient"
    np.testing.assert_allclose(np.asarray(w.grad), gradient, rtol=1e-5)
    return "right"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_numbers_and_arrays(name, side, dtype):
    function, slopes = OPERATORS[name]
    values = np.array([0.5, -1.25, 2.0])
    w = tensor(values, dtype)
    counts = {"right": 0, "refused": 0}
    for what, other in [*scalars(), *arrays(()), *arrays((3,))]:
        numbers = np.asarray(other)
        for f in (function, UFUNCS[name]):
            if numbers.dtype.kind in "fiub":
                numbers = numbers.astype("f8")
                pair = (numbers, values) if side == "left" else (values, numbers)
                gradient = slopes(*pair)[1 if side == "left" else 0]
                reference = (function(*pair), gradient)
            else:
                reference = (None, None)
            call = (lambda: f(other, w)) if side == "left" else (lambda: f(w, other))  # noqa: B023
            result = outcome(call, w, reference)
            counts[result] += 1
            if " " not in what or what.startswith("numpy"):
                assert result == "right", (what, f)
            if what == f"array {dtype}":
                assert result == "right", (what, f)
    assert counts["right"] >= 30, counts


@pytest.mark.parametrize("side", ["left", "right"])
def test_matrix_products_with_arrays(side):
    a, w = np.arange(9.0).reshape(3, 3), tensor(np.eye(3) + 1, "f8")
    for f in (operator.matmul, np.matmul):
        pair = (a, np.eye(3) + 1) if side == "left" else (np.eye(3) + 1, a)
        gradient = a.T @ np.ones((3, 3)) if side == "left" else np.ones((3, 3)) @ a.T
        call = (lambda: f(a, w)) if side == "left" else (lambda: f(w, a))  # noqa: B023
        assert outcome(call, w, (pair[0] @ pair[1], gradient)) == "right"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_that_16_bits_do_not_hold(dtype):
    """A number is not rounded to the tensor's type: computed as float32 and rounded once, as PyTorch does."""
    x = mh.tensor([100.0, 3.0, 200.0], dtype=dtype)
    wide = x.astype("float32").numpy()
    for f in (lambda v: v / 70000.0, lambda v: v / 1.003, lambda v: 1e5 / v, lambda v: v * 1e-4, lambda v: v * 1.003,
              lambda v: v + 1.003, lambda v: 1.003 - v, lambda v: (np.divide if isinstance(v, np.ndarray) else mh.div)(v, 70000.0)):
        want = mh.tensor(np.float32(f(wide)), dtype=dtype).astype("float32").numpy()
        np.testing.assert_array_equal(f(x).astype("float32").numpy(), want)


def test_matrix_products_of_vectors():
    rng = np.random.default_rng(0)
    for a, b in [((3,), (3,)), ((3,), (2, 3, 5)), ((4, 2, 3), (3,))]:
        x, y = rng.standard_normal(a), rng.standard_normal(b)
        np.testing.assert_allclose((tensor(x, "f8") @ tensor(y, "f8")).numpy(), x @ y, atol=1e-15)
    with pytest.raises(mh.ShapeError, match="must have axes"):
        mh.matmul(1.0, np.ones((2, 2)))


# Of matrices; comparisons, which have no gradient; powers, which depend on the exponent: test_tensor_methods.py.
LEFT_OUT = {"matmul", "vecdot", "matvec", "vecmat", "power", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}


def test_ufuncs_of_a_tensor_that_learns_are_ours_or_refused():
    values = np.array([0.25, 0.5, 0.75])
    ours = {"exp", "log", "sqrt", "tanh", "square", "negative", "add", "subtract", "multiply", "divide",
            "absolute", "maximum", "minimum"}
    seen, step = set(), 1e-6
    for name in sorted(set(dir(np))):
        ufunc = getattr(np, name)
        if not isinstance(ufunc, np.ufunc) or ufunc.nin > 2 or ufunc.__name__ in LEFT_OUT:
            continue
        w, others = tensor(values, "f8"), [np.array([1.5, 2.0, 3.0])] * (ufunc.nin - 1)
        try:
            value = ufunc(values, *others)
            slope = (ufunc(values + step, *others) - ufunc(values - step, *others)) / (2 * step)
        except TypeError:
            value = slope = None
        result = outcome(lambda: ufunc(w, *others), w, (value, slope))  # noqa: B023
        assert (result == "right") == (ufunc.__name__ in ours), name
        seen.add(ufunc.__name__)
    assert ours <= seen and len(seen) > 55


@pytest.mark.parametrize(
    "call",
    [np.sum, np.mean, np.linalg.norm, np.transpose, lambda w: np.dot(w, w), lambda w: np.concatenate([w, w]),
     lambda w: np.stack([np.ones(3), w]), lambda w: np.where(np.ones(3, bool), w, 0), lambda w: np.einsum("i->", w),
     np.add.reduce, lambda w: np.add.outer(np.ones(2), w), lambda w: np.exp(w, out=np.empty(3)),
     lambda w: np.multiply(2.0, w, where=np.ones(3, bool)), lambda w: operator.iadd(np.ones(3), w)],
)  # fmt: skip
def test_other_functions_of_numpy_are_refused_under_a_tape(call):
    w = tensor([0.25, 0.5, 0.75], "f8")
    with mh.Tape():
        with pytest.raises(TypeError, match="numpy.*gradient"):
            call(w)
        call(w.detach())  # numbers without a gradient are NumPy's to compute with
    call(w)  # and so are all where nothing is recorded


def test_numpy_writes_to_arrays_not_to_tensors():
    t = mh.tensor(np.ones(3, np.float32))
    with pytest.raises(TypeError, match=r"numpy.add writes to arrays; give out=numpy.asarray\(tensor\)"):
        np.add(t, t, out=t)
    np.add(t, t, out=np.asarray(t), where=mh.tensor([True, False, True]))
    assert t.tolist() == [2, 1, 2]


def test_attention_over_a_scaled_query_learns():
    rng = np.random.default_rng(0)
    q, k, v = (tensor(rng.standard_normal((1, 2, 5, 4)), "f8") for _ in range(3))
    gradients = []
    for scaled in (lambda: np.float64(0.35) * q, lambda: mh.scale(q, 0.35)):
        q.grad = None
        with mh.Tape() as tape:
            tape.backward(mh.sum(mh.square(mh.attention(scaled(), k, v))))
        gradients.append(np.asarray(q.grad).copy())
    np.testing.assert_allclose(*gradients, rtol=1e-12)
