"""custom_op, gradcheck and compare: an inventor's tools."""

import math

import numpy as np
import pytest

import multihead as mh


def sparsemax(x):
    z = x.numpy()
    ordered = -np.sort(-z, -1)
    sums = np.cumsum(ordered, -1) - 1
    count = (ordered > sums / np.arange(1, z.shape[-1] + 1)).sum(-1, keepdims=True)
    return np.maximum(z - np.take_along_axis(sums, count - 1, -1) / count, 0).astype(z.dtype)


def sparsemax_backward(d, x, y):
    support = y.numpy() > 0
    mean = (d.numpy() * support).sum(-1, keepdims=True) / support.sum(-1, keepdims=True)
    return (support * (d.numpy() - mean)).astype(x.dtype)


def leaf(values, dtype=np.float64):
    return mh.tensor(np.array(values, dtype), requires_grad=True)


def test_an_operation_with_its_own_gradient():
    op = mh.custom_op(sparsemax, sparsemax_backward)
    x = np.random.default_rng(0).standard_normal((3, 5))
    assert np.allclose(op(x).numpy().sum(-1), 1)
    assert mh.gradcheck(lambda x: mh.square(op(x)), [x]) < 1e-7
    assert mh.gradcheck(lambda x: op(mh.scale(x, 2.0)), [x]) < 1e-7  # between recorded operations


def test_several_inputs_and_results():
    op = mh.custom_op(
        lambda a, b, factor: (a.numpy() * b.numpy() * factor, a.numpy() + b.numpy()),
        lambda d, a, b, y, factor: tuple(
            (0 if d[0] is None else d[0].numpy() * factor * other.numpy()) + (0 if d[1] is None else d[1].numpy())
            for other in (b, a)
        ),
    )
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((2, 3)), rng.standard_normal((2, 3))]
    assert mh.gradcheck(lambda a, b: op(a, b, factor=3.0), inputs) < 1e-7
    assert mh.gradcheck(lambda a, b: op(a, b, factor=3.0)[1], inputs) < 1e-7


def test_arrays_that_a_function_keeps_stay_as_they_are():
    ones = np.ones(3)
    op = mh.custom_op(lambda x: np.exp(x.numpy()), lambda d, x, y: y.numpy())
    constant = mh.custom_op(lambda x: x.numpy(), lambda d, x, y: ones)
    x = leaf([0.0, 1.0, 2.0])
    with mh.Tape() as tape:
        y = constant(mh.exp(op(mh.tanh(x))))
        kept = np.array(y.numpy())
        tape.backward(mh.sum(y))
    assert ones.tolist() == [1, 1, 1] and np.array_equal(y.numpy(), kept)


def test_results_without_a_gradient():
    op = mh.custom_op(
        lambda x: (np.sort(x.numpy()), np.argsort(x.numpy())),
        lambda d, x, y: (np.put_along_axis(dx := np.zeros(x.shape), y[1].numpy(), d[0].numpy(), -1), dx)[1],
    )
    assert mh.gradcheck(lambda x: op(mh.square(x))[0], [np.array([3.0, -1.0, 2.0])]) < 1e-7
    assert op([3.0, 1.0])[1].tolist() == [1, 0]


def test_only_what_requires_a_gradient_gets_one():
    op = mh.custom_op(lambda a, b: a.numpy() * b.numpy(), lambda d, a, b, y: (d.numpy() * b.numpy(), None))
    a, b = leaf([1.0, 2.0]), mh.tensor(np.array([3.0, 4.0]))
    with mh.Tape() as tape:
        tape.backward(mh.sum(op(a, b)))
    assert a.grad.tolist() == [3, 4] and b.grad is None
    assert not op(a, b).requires_grad  # no tape


@pytest.mark.parametrize(
    "gradient, error, text",
    [
        (lambda d, x, y: (d, d), ValueError, "one gradient per input, 1, got 2"),
        (lambda d, x, y: mh.zeros((3,), "float64"), mh.ShapeError, r"the gradient of input 0 must be \[2\], got \[3\]"),
        (lambda d, x, y: mh.zeros((2,)), mh.DtypeError, "the gradient of input 0 must be f64, got f32"),
        (lambda d, x, y: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_a_wrong_backward_is_named(gradient, error, text):
    op = mh.custom_op(lambda x: x.numpy() + 1, gradient)
    with mh.Tape() as tape:
        y = mh.sum(op(leaf([1.0, 2.0])))
        with pytest.raises(error, match=text):
            tape.backward(y)


def test_gradcheck_finds_a_wrong_gradient():
    wrong = mh.custom_op(lambda x: x.numpy() ** 2, lambda d, x, y: d.numpy() * 2.001 * x.numpy())
    with pytest.raises(ValueError, match=r"gradcheck: input 0 at \(0,\): the gradient is"):
        mh.gradcheck(wrong, [np.array([1.5, 2.0])])
    with pytest.raises(ValueError, match="depends on no input"):
        mh.gradcheck(lambda x: mh.tensor(np.ones(2)), [np.ones(2)])


def test_gradcheck_of_attention():
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal((1, 2, 4, 3)) for _ in range(3)]
    assert mh.gradcheck(lambda q, k, v: mh.attention(q, k, v, mask=mh.causal()), inputs) < 1e-7


def test_compare_prints_errors_times_and_memory(capsys):
    shapes = [(1, 2, 16, 8)] * 3

    def by_hand(q, k, v):
        return mh.matmul(mh.softmax(mh.scale(mh.matmul(q, mh.transpose(k, 2, 3)), 1 / math.sqrt(8))), v)

    table = mh.compare(mh.attention, by_hand, shapes)
    assert max(table["results in float64"]) < 1e-14 and max(table["gradients in float64"]) < 1e-13
    assert max(table["results in float32"]) < 1e-5 and len(table["gradients in float32"]) == 3
    assert len(table["seconds of f"]) == 2 and table["bytes for the backward"][0] > 0
    assert "gradients in float32" in capsys.readouterr().out
    with pytest.raises(mh.ShapeError, match="compare: results must be"):
        mh.compare(lambda x: x, lambda x: mh.sum(x, 0), [(2, 3)])


def test_functions_of_one_number():
    x = np.array([-200.0, -1.5, 0.0, 1.5, 200.0])
    t = leaf(x)
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.log_sigmoid(t)))
    assert np.allclose(t.grad.numpy(), [1, 1 / (1 + math.exp(-1.5)), 0.5, 1 / (1 + math.exp(1.5)), 0])
    assert np.allclose(mh.log_sigmoid(x).numpy(), -np.logaddexp(0, -x), rtol=1e-14)
    assert np.allclose(mh.softplus(x).numpy(), np.logaddexp(0, x), rtol=1e-14)
    for f in (mh.log_sigmoid, mh.softplus, mh.abs):
        assert mh.gradcheck(f, [np.array([-2.0, -0.3, 0.4, 3.0])]) < 1e-8
    assert mh.abs(x.astype(np.float32)).tolist() == [200, 1.5, 0, 1.5, 200]
    wide = np.linspace(-100, 100, 4001).astype(np.float32)
    for f, exact in ((mh.log_sigmoid, lambda x: -np.logaddexp(0, -x)), (mh.softplus, lambda x: np.logaddexp(0, x))):
        expected = exact(wide.astype(np.float64))
        assert np.allclose(f(wide).numpy(), expected, rtol=4e-7, atol=1e-37)


def test_log_sigmoid_in_a_traced_score_function():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, 6, 4)) for _ in range(3))
    traced = mh.attention(q, k, v, score_mod=mh.score_mod(lambda s, b, h, i, j: s.log_sigmoid()))
    s = q @ k.transpose(0, 1, 3, 2) / 2
    p = np.exp(-np.logaddexp(0, -s))
    assert np.allclose(traced.numpy(), p / p.sum(-1, keepdims=True) @ v)
    assert mh.gradcheck(
        lambda q: mh.attention(q, k, v, score_mod=mh.score_mod(lambda s, b, h, i, j: s.log_sigmoid())), [q]
    ) < 1e-7  # fmt: skip
