"""A Tensor has the operators, methods and habits of NumPy's and PyTorch's arrays, differentiable or refused by name."""

import copy
import re

import numpy as np
import pytest

import multihead as mh

X = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)


def same(tensor, array):
    assert isinstance(tensor, mh.Tensor)
    np.testing.assert_array_equal(np.asarray(tensor), array)


def gradient(f, values=X, dtype="float64"):
    x = mh.tensor(np.asarray(values, dtype), requires_grad=True)
    with mh.Tape() as tape:
        y = f(x)
        tape.backward(mh.sum(y))
    return np.asarray(x.grad)


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
def test_comparisons_are_elementwise(name):
    x, other = mh.tensor(X), X[::-1].copy()
    for y in (other, mh.tensor(other), 0.5, np.float32(0.5), other[0]):
        numbers = np.asarray(y) if isinstance(y, mh.Tensor) else y
        same(getattr(x, name)(y), getattr(X, name)(numbers))
    same(mh.tensor([1, 2, 3]) == np.array([1, 0, 3]), [True, False, True])
    assert (x == None) is False and (x != "text") is True  # noqa: E711
    assert x in [x] and hash(x) == hash(x) and {x: 1}[x] == 1


def test_truth_is_of_one_element():
    assert bool(mh.tensor(2.0)) and not bool(mh.tensor([[0]])) and bool(mh.tensor([True]))
    for bad in (X, X[:0]):
        with pytest.raises(ValueError, match="truth of .* any"):
            bool(mh.tensor(bad))


def test_numbers_keep_their_kind():
    assert type(mh.tensor(2**53 + 1).item()) is int and mh.tensor(2**53 + 1).item() == 2**53 + 1
    assert mh.tensor(True).item() is True and type(mh.tensor(2.0).item()) is float
    assert [10, 20, 30][mh.tensor(1)] == 20 and int(mh.tensor(2.75)) == 2
    assert f"{mh.tensor(2.0 / 3):.3f}" == "0.667" and f"{mh.tensor([3]):04d}" == "0003"
    with pytest.raises(TypeError, match="one element"):
        f"{mh.tensor(X):.3f}"
    with pytest.raises(TypeError, match="index"):
        [1, 2][mh.tensor(1.0)]


def test_it_prints_like_numpy():
    assert repr(mh.tensor(X)) == "Tensor([[ 1.5, -2. ,  3. ],\n        [ 0.5,  4. , -1. ]])"
    assert repr(mh.tensor([1.0, 2.0], dtype="float64", requires_grad=True)) == (
        "Tensor([1., 2.], dtype=float64, requires_grad=True)"
    )
    assert repr(mh.zeros((0, 3))) == "Tensor([], shape=(0, 3), dtype=float32)"
    assert repr(mh.ones(2, "bfloat16")) == "Tensor([1., 1.], dtype=bfloat16)" and str(mh.tensor([1, 2])) == "[1 2]"


def test_whole_numbers_have_operators():
    i, n = mh.tensor([7, -3, 2]), np.array([7, -3, 2])
    for a, b in ((i + 1, n + 1), (1 - i, 1 - n), (i * i, n * n), (-i, -n), (i // 2, n // 2), (i % 2, n % 2), (i ** 2, n**2),
                 (i & 3, n & 3), (2**mh.tensor([1, 2]), np.array([2, 4])), (~mh.tensor([True]), [False]), (i @ i, n @ n)):  # fmt: skip
        same(a, b)
        assert a.dtype in ("int64", "bool")
    assert (i / 2).dtype == "float32" and (i * 0.5).dtype == "float32"
    same(i / 2, (n / 2).astype("f4"))
    np.testing.assert_array_equal(np.float32(0.5) * i, np.float32(0.5) * n)  # NumPy's own
    same((mh.tensor(X) > 0) & (mh.tensor(X) < 2), (X > 0) & (X < 2))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axis, keepdims):
    x, i = mh.tensor(X), (X * 2).astype(int)
    for name in ("sum", "mean", "max", "min", "prod", "var", "std", "any", "all"):
        found = getattr(x, name)(axis=axis, keepdims=keepdims)
        expected = getattr(X, name)(axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)
        assert found.shape == expected.shape
        if name in ("sum", "max", "min"):
            same(getattr(mh.tensor(i), name)(axis, keepdims), getattr(i, name)(axis=axis, keepdims=keepdims))
            assert mh.tensor(i).to("int32").sum(axis).dtype == "int64"
            assert name != "sum" or hasattr(mh, name)
    if not isinstance(axis, tuple):
        same(x.argmax(axis, keepdims), X.argmax(axis, keepdims=keepdims))
        same(mh.argmin(X, axis, keepdims), X.argmin(axis, keepdims=keepdims))


def test_gradients_of_reductions():
    np.testing.assert_allclose(gradient(lambda x: mh.square(x.mean(axis=0))), np.tile(X.mean(0), (2, 1)), rtol=1e-12)
    np.testing.assert_array_equal(gradient(lambda x: x.max(axis=1)), [[0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(gradient(lambda x: x.max(), [2.0, 1.0, 2.0]), [0.5, 0, 0.5])
    x = np.asarray(X, "f8")
    expected = 2 * (x - x.mean(1, keepdims=True)) / 2
    np.testing.assert_allclose(gradient(lambda t: t.var(1, correction=1)), expected, rtol=1e-12)
    with pytest.raises(TypeError, match="prod.*no gradient"):
        gradient(lambda t: t.prod())


def test_shapes():
    x, big = mh.tensor(X), np.arange(24.0).reshape(2, 3, 4)
    same(x.T, X.T)
    assert x[None].shape == (1, 2, 3) and mh.tensor(1.0)[None].shape == (1,)
    same(mh.tensor(big).mT, big.swapaxes(1, 2))
    same(mh.tensor(big).permute(2, 0, 1), big.transpose(2, 0, 1))
    same(mh.tensor(big).flatten(1), big.reshape(2, 12))
    same(mh.tensor(big).flatten(), big.ravel())
    same(x.unsqueeze(-1).squeeze(), X)
    assert x.unsqueeze(1).shape == (2, 1, 3) and x.unsqueeze(1).squeeze(1).shape == (2, 3)
    assert mh.zeros((1, 2, 1)).squeeze((0, -1)).shape == (2,)
    assert x.astype("float64").dtype == "float64" and x.device == "cpu"
    assert x.T.data_ptr == x.data_ptr != x.copy().data_ptr != copy.copy(x).data_ptr
    for call in (lambda: mh.tensor(big).T, lambda: x.squeeze(0), lambda: x.unsqueeze(4), lambda: x.permute(0)):
        with pytest.raises(ValueError):
            call()


def test_absolute_values():
    same(abs(mh.tensor(X)), np.abs(X))
    same(abs(mh.tensor([-3, 2])), [3, 2])
    np.testing.assert_array_equal(gradient(abs), np.sign(X))


def test_powers():
    positive = mh.tensor(np.abs(X))
    for power in (2, 3, 0.5, -1, 0, -2, 1.7):
        np.testing.assert_allclose(np.asarray(positive**power), np.abs(X) ** power, rtol=1e-6)
    for power in (2, 3, -1, -2, 5):
        slope = power * np.asarray(X, "f8") ** (power - 1)
        np.testing.assert_allclose(gradient(lambda x: x**power), slope, rtol=1e-12)  # noqa: B023
    np.testing.assert_allclose(gradient(lambda x: 2.0**x), np.log(2) * 2.0 ** np.asarray(X, "f8"), rtol=1e-12)
    np.testing.assert_allclose(gradient(lambda x: mh.abs(x) ** 1.7), 1.7 * np.abs(np.asarray(X, "f8")) ** 0.7 * np.sign(X), rtol=1e-12)
    np.testing.assert_allclose(gradient(lambda x: x**mh.tensor(np.full(X.shape, 3.0))), 3 * np.asarray(X, "f8") ** 2, rtol=1e-12)


def test_indices_that_are_arrays_take_copies_with_gradients():
    x, rows, mask = mh.tensor(X), np.array([1, 0, 1]), X > 0
    for key in (rows, mask, (rows, 0), (slice(None), [2, 0]), (..., rows), np.array(1), mh.tensor(rows), [True, False], (0, [1, 1]),
                (None, rows), (slice(None, None, -1), rows)):  # fmt: skip
        plain = np.asarray(key) if isinstance(key, mh.Tensor) else key
        same(x[key], X[plain])
        weights = np.arange(1.0, X[plain].size + 1).reshape(X[plain].shape)
        expected = np.zeros(X.shape)
        np.add.at(expected, plain, weights)
        np.testing.assert_array_equal(gradient(lambda t: t[key] * mh.tensor(weights)), expected)  # noqa: B023
    np.testing.assert_array_equal(gradient(lambda t: t[:, ::2]), [[1, 0, 1], [1, 0, 1]])
    assert x[np.int64(1)].data_ptr == x[1].data_ptr  # a view
    for key in (1.5, "a", [0.5]):
        with pytest.raises(TypeError, match="indices"):
            x[key]
    with pytest.raises(IndexError):
        x[[7]]


def test_elements_can_be_set_outside_a_tape():
    array = X.copy()
    x = mh.tensor(array)
    x[0, 1] = 9
    x[:, 2] = mh.tensor([5.0, 6.0])
    x[x < 0] = 0
    np.testing.assert_array_equal(array, [[1.5, 9, 5], [0.5, 4, 6]])
    with mh.Tape(), pytest.raises(TypeError, match="Tape"):
        x[0] = 1
    with pytest.raises(TypeError, match="bfloat16"):
        mh.ones(2, "bfloat16")[0] = 1
    with pytest.raises(ValueError, match="expanded"):
        mh.ones(1).expand((3,))[0] = 1


def test_it_is_walked_over_by_rows():
    assert [row.tolist() for row in mh.tensor(X)] == X.tolist() and 4.0 in mh.tensor(X) and 7 not in mh.tensor(X)
    with pytest.raises(TypeError, match="without axes"):
        list(mh.tensor(1.0))


@pytest.mark.parametrize(
    "call,wrong",
    [(lambda x: x.cumsum(0), "'cumsum'; write multihead.cumsum(x, ...)"), (lambda x: x.ravel(), "'ravel'; write flatten()"),
     (lambda x: x.mean(dim=0), "Tensor.mean() got an unexpected keyword argument 'dim'")],
)  # fmt: skip
def test_habits_are_told_what_to_write(call, wrong):
    with pytest.raises((AttributeError, TypeError), match=re.escape(wrong)):
        call(mh.tensor(X))
    for name in ("nothing", "Rng"):
        assert str(pytest.raises(AttributeError, getattr, mh.tensor(X), name).value) == f"Tensor has no '{name}'"


def test_copies_are_differentiable():
    np.testing.assert_array_equal(gradient(lambda x: mh.square(x.clone())), 2 * X)
    np.testing.assert_array_equal(gradient(lambda x: copy.copy(x * 3.0)), np.full(X.shape, 3))


def test_a_comparison_has_no_gradient_and_arrays_on_the_left_agree():
    x = mh.tensor(X, requires_grad=True)
    with mh.Tape():
        assert not (x > 0).requires_grad
        np.testing.assert_array_equal(np.asarray(X[0] < x), X[0] < X)
        with pytest.raises(TypeError, match="gradient"):
            x // 2.0


@pytest.mark.parametrize("name, hint", [("view", "reshape"), ("numel", "size"), ("float", "to.'float32'"), ("backward", "Tape"),
                                        ("nonsense", "no 'nonsense'")])  # fmt: skip
def test_names_of_others_say_what_to_write(name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(mh.tensor(X), name)


def test_old_names_are_refused_with_the_new():
    with pytest.raises(TypeError, match="'keep_axis' is called 'keepdims' now"):
        mh.sum(X, 0, keep_axis=True)


def test_an_index_without_axes_drops_its_axis():
    x = mh.tensor(np.arange(12.0, dtype="f4").reshape(3, 4), requires_grad=True)
    for key in (np.array(1), mh.tensor(np.int64(1))):
        assert mh.tensor(np.arange(4))[key].shape == ()
        assert x[key, key].shape == () and x[key].shape == (4,)
        with mh.Tape() as tape:
            tape.backward(x[key, np.array(2)])
    assert np.asarray(x.grad)[1, 2] == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_variances_of_narrow_types_stay_in_range(dtype):
    y = mh.tensor(np.tile([0.0, 20.0], 5000).astype("f4")).to(dtype)
    assert float(y.var()) == 100 and float(y.std()) == 10
    assert y.var().dtype == dtype


def test_whole_numbers_are_negated_in_their_type():
    for dtype in ("int64", "int32"):
        y = -mh.tensor(np.array([1, -2], dtype))
        assert y.dtype == dtype and y.tolist() == [-1, 2]
    with pytest.raises(TypeError, match="not supported"):
        -mh.tensor([True])


def test_operators_by_numpy_keep_the_real_type():
    b, x, d = mh.ones((2, 2), "bfloat16"), mh.ones((2, 2)), np.ones((2, 2))
    for y in (b**3, b // 2, 2**b, b % 2, b.prod()):
        assert y.dtype == "bfloat16"
    assert (x ** np.float64(3)).dtype == (x * np.float64(3)).dtype == "float32"
    for operate in (lambda: x**d, lambda: x // d, lambda: x % d):
        with pytest.raises(mh.DtypeError, match="float32 and float64"):
            operate()


def test_sequences_are_no_operands():
    two = mh.tensor(np.int64(2))
    for operate in (lambda: two * [1, 2], lambda: [1, 2] * two, lambda: two * "ab", lambda: mh.ones((2,)) + (1, 2)):
        with pytest.raises(TypeError, match="is no operand; write tensor"):
            operate()


def test_a_gradient_has_the_shape_and_type_of_its_tensor():
    p = mh.tensor(np.ones(3, "f4"), requires_grad=True)
    with pytest.raises(ValueError, match=r"grad must be \[3\], got \[300\]"):
        p.grad = np.ones(300, "f4")
    for dtype in ("f8", "i8"):
        with pytest.raises(TypeError, match="grad of f32 must be f32"):
            p.grad = np.ones(3, dtype)
    half = mh.ones((3,), "bfloat16").requires_grad_()
    half.grad = np.ones(3, "f4")
    assert p.grad is None and half.grad.dtype == "float32"


@pytest.mark.parametrize("correction", [0, 1])
def test_std_of_equal_elements_has_gradient_0(correction):
    rows = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 6.0]])
    got = gradient(lambda x: x.std(axis=1, correction=correction), rows)
    expected = (rows - rows.mean(1, keepdims=True)) / (3 - correction) / np.array([[np.inf], [rows[1].std(ddof=correction)]])
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    x = mh.tensor(rows, requires_grad=True)
    with mh.Tape():
        same(x.std(axis=1, correction=correction), np.sqrt(x.detach().var(1, correction=correction).numpy()))
