"""Ops that arrays have, against NumPy and PyTorch: values of random cases, gradients by differences, indexing."""

import numpy as np
import pytest

import multihead as mh

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_comparisons_are_numpys(dtype):
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((4, 1, 5), (3, 1)))
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        assert np.array_equal(getattr(mh, name)(a, b).numpy(), getattr(np, name)(a, b)), name
    assert mh.greater(mh.tensor(a), 1).numpy().tolist() == (a > 1).tolist()
    assert mh.less(1, mh.tensor(a)).numpy().tolist() == (1 < a).tolist()


def test_extremes_powers_and_clamp():
    a, b = normal(3, 5), normal(5)
    assert np.array_equal(mh.maximum(a, b).numpy(), np.maximum(a, b))
    assert np.array_equal(mh.minimum(a, 0.25).numpy(), np.minimum(a, 0.25))
    assert np.array_equal(mh.clamp(a, low=-0.5).numpy(), np.maximum(a, -0.5))
    assert np.array_equal(mh.clamp(a, -0.5, 0.5).numpy(), np.clip(a, -0.5, 0.5))
    base = np.abs(a) + 0.1
    assert np.allclose(mh.pow(base, b).numpy(), base**b, rtol=1e-14)
    assert np.allclose(mh.pow(2.0, mh.tensor(b)).numpy(), 2**b, rtol=1e-14)
    assert np.array_equal(mh.pow(a, 2).numpy(), a * a)
    f = base.astype(np.float32)
    assert np.array_equal(mh.pow(f, 1.7).numpy(), (f.astype(np.float64) ** np.float64(np.float32(1.7))).astype(np.float32))
    assert mh.gradcheck(lambda a, b: mh.maximum(a, b) * mh.pow(mh.exp(a), b), [a, b]) < 1e-6


def test_sorting_is_numpys():
    x = rng.integers(0, 4, (5, 7)).astype(np.float32)
    for axis in (0, 1, -1):
        assert np.array_equal(mh.argsort(x, axis).numpy(), np.argsort(x, axis, kind="stable"))
        assert np.array_equal(mh.sort(x, axis).numpy(), np.sort(x, axis))
        values, places = mh.topk(x, 3, axis)
        assert np.array_equal(values.numpy(), -np.sort(-x, axis).take(range(3), axis))
        assert np.array_equal(np.take_along_axis(x, places.numpy(), axis), values.numpy())
    assert mh.gradcheck(lambda x: mh.sort(x, 0, descending=True) * x, [normal(4, 3)]) < 1e-7


def test_scans_windows_and_takes():
    x = normal(2, 6, 3)
    assert np.allclose(mh.cumsum(x, 1).numpy(), np.cumsum(x, 1), rtol=1e-14)
    assert np.allclose(mh.cumsum(x, 1, reverse=True).numpy(), np.cumsum(x[:, ::-1], 1)[:, ::-1], rtol=1e-14)
    assert np.array_equal(mh.roll(x, -4, 1).numpy(), np.roll(x, -4, 1))
    assert np.array_equal(mh.pad(x, 1, 2, 1, value=7).numpy(), np.pad(x, ((0, 0), (2, 1), (0, 0)), constant_values=7))
    assert np.array_equal(mh.shift(x, 2, 1).numpy(), np.pad(x, ((0, 0), (2, 0), (0, 0)))[:, :6])
    i = rng.integers(-6, 6, (2, 2))
    assert np.array_equal(mh.take(x, i, 1).numpy(), np.take(x, i, 1))
    along = rng.integers(0, 6, (1, 4, 3))
    assert np.array_equal(mh.take_along_axis(x, along, 1).numpy(), np.take_along_axis(x, along, 1))


def test_conv1d_and_solve_are_pytorchs():
    torch = pytest.importorskip("torch")
    for groups, out, options in ((1, 5, {}), (2, 6, dict(stride=2, padding=3)), (4, 4, dict(dilation=2, padding=2))):
        x, w, b = normal(2, 4, 11), normal(out, 4 // groups, 3), normal(out)
        want = torch.nn.functional.conv1d(*map(torch.tensor, (x, w, b)), groups=groups, **options)
        assert np.allclose(mh.conv1d(x, w, b, groups=groups, **options).numpy(), want.numpy(), atol=1e-13)
    a, b = normal(2, 6, 6) + 4 * np.eye(6), normal(2, 6, 3)
    want = torch.linalg.solve_triangular(torch.tensor(a), torch.tensor(b), upper=True, unitriangular=False)
    assert np.allclose(mh.solve_triangular(a, b, lower=False).numpy(), want.numpy(), atol=1e-13)
    assert mh.gradcheck(lambda a, b: mh.solve_triangular(a, b, unit=True), [normal(3, 3), normal(3, 2)]) < 1e-6


def reference(q, k, v, log_decay, beta, state, rule, lengths=None):
    """The definition, token by token."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    state = np.zeros((*k.shape[:2], k.shape[3], v.shape[3])) if state is None else state.astype(np.float64)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            S = state[b, h]
            for t in range(q.shape[2] if lengths is None else lengths[b]):
                if log_decay is not None:
                    S = S * np.exp(np.broadcast_to(log_decay[b, h, t], k.shape[3]))[:, None]
                write = v[b, h, t]
                if rule != "retention":
                    write = (1 if beta is None else beta[b, h, t]) * (write - S.T @ k[b, h, t])
                S = S + np.outer(k[b, h, t], write)
                for g in range(group):
                    out[b, h * group + g, t] = S.T @ q[b, h * group + g, t] / np.sqrt(q.shape[3])
            state[b, h] = S
    return out, state


# The rule, and log_decay: 0 without, 1 per head, 2 per row of the state.
CASES = [("retention", 0), ("retention", 1), ("retention", 2), ("delta", 0), ("gated_delta", 1), ("gated_delta", 2)]


def inputs(rule, decay, length, dtype=np.float64, heads=(4, 2), dim=5, value_dim=40):
    made = {"q": normal(2, heads[0], length, dim), "k": normal(2, heads[1], length, dim) / np.sqrt(dim)}
    made["v"] = normal(2, heads[1], length, value_dim)
    made["state"] = normal(2, heads[1], dim, value_dim)
    if decay:
        made["log_decay"] = -np.abs(normal(2, heads[1], length, *([dim] if decay == 2 else []))) / 3
    if rule != "retention":
        made["beta"] = rng.random((2, heads[1], length))
    return {name: x.astype(dtype) for name, x in made.items()}


def run(x, rule, **options):
    x = {**x, **options}
    return mh.linear_attention(x.pop("q"), x.pop("k"), x.pop("v"), rule=rule, **x)


@pytest.mark.parametrize("rule, decay", CASES)
@pytest.mark.parametrize("length", [1, 2, 37, 130])
def test_linear_attention_is_its_definition(rule, decay, length):
    x = inputs(rule, decay, length)
    want = reference(x["q"], x["k"], x["v"], x.get("log_decay"), x.get("beta"), x["state"].copy(), rule)
    for got, expected in zip(run(x, rule), want):
        assert np.allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)
    narrow = {name: a.astype(np.float32) for name, a in x.items()}
    for got, expected in zip(run(narrow, rule), want):
        assert np.abs(got.numpy() - expected).max() < 5e-6 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("rule, decay", CASES)
def test_linear_attention_has_one_result(rule, decay):
    """Threads, batch, chunks, lengths, calls with a state and decoding change no bit, of gradients neither."""
    x = inputs(rule, decay, 70, np.float32)
    out, state = (y.numpy() for y in run(x, rule))
    tokens = lambda x, a, b: {n: y if n == "state" else y[:, :, a:b] for n, y in x.items()}  # noqa: E731
    pieces, now = [], x["state"]
    for a, b in ((0, 31), (31, 32), (32, 70)):
        part, now = run({**tokens(x, a, b), "state": now}, rule)
        pieces.append(part.numpy())
    assert np.array_equal(np.concatenate(pieces, 2), out) and np.array_equal(now.numpy(), state)
    step, now = [], x["state"]
    for t in range(70):
        part, now = run({**tokens(x, t, t + 1), "state": now}, rule)
        step.append(part.numpy())
    assert np.array_equal(np.concatenate(step, 2), out)
    one = run({n: y[1:] for n, y in x.items()}, rule)
    assert np.array_equal(one[0].numpy(), out[1:])
    ragged, last = run(x, rule, lengths=np.array([70, 33]))
    assert np.array_equal(ragged.numpy()[1, :, :33], out[1, :, :33]) and not ragged.numpy()[1, :, 33:].any()
    assert np.array_equal(last.numpy()[1], run(tokens(x, 0, 33), rule)[1].numpy()[1])

    def gradients(chunk, threads):
        mh.set_num_threads(threads)
        leaves = {n: mh.tensor(y, requires_grad=True) for n, y in x.items()}
        with mh.Tape() as tape:
            y, s = run(leaves, rule, chunk=chunk)
            tape.backward(mh.sum(y * y) + mh.sum(s))
        return [leaves[n].grad.numpy() for n in x]

    threads = mh.num_threads()
    want = gradients(64, 1)
    for chunk, count in ((64, 4), (1, 2), (7, 1), (1000, 3)):
        for got, expected in zip(gradients(chunk, count), want):
            assert np.array_equal(got, expected)
    mh.set_num_threads(threads)


@pytest.mark.parametrize("rule, decay", CASES)
def test_linear_attention_gradients(rule, decay):
    x = inputs(rule, decay, 9, heads=(2, 1), dim=3, value_dim=2)
    names = list(x)

    def call(*arrays):
        y, s = run(dict(zip(names, arrays)), rule, chunk=4, lengths=np.array([9, 6]))
        return mh.square(y), mh.square(s)

    assert mh.gradcheck(call, list(x.values())) < 1e-6


def test_linear_attention_refuses():
    x = inputs("retention", 1, 4)
    for wrong, error, text in (
        (dict(beta=np.ones((2, 2, 4))), ValueError, "retention has no beta"),
        (dict(rule="delta"), ValueError, "delta has no log_decay"),
        (dict(rule="gated_delta", log_decay=None), ValueError, "gated_delta needs log_decay"),
        (dict(rule="linear"), ValueError, "rule must be one of 'retention', 'delta', 'gated_delta'"),
        (dict(state=np.ones((2, 2, 5, 3))), mh.ShapeError, "state must be"),
        (dict(k=x["k"][:, :1].repeat(3, 1)), mh.ShapeError, "do not fit"),
        (dict(lengths=np.array([5, 1])), ValueError, "lengths must be 0 to 4"),
    ):
        given = {**x, "rule": "retention", **wrong}
        with pytest.raises(error, match=text):
            run(given, given.pop("rule"))
