"""A score function reads a tensor by every way to reach it: right value and gradient, or a refusal."""

import functools
import os
import types

import numpy as np
import pytest

import multihead as mh

RNG = np.random.default_rng(11)
Q, K, V = (RNG.standard_normal((1, 2, 5, 4)) for _ in range(3))
VALUES = np.array([0.5, -1.5])
GLOBAL = None  # the capture, for functions that read a global
BOX = types.SimpleNamespace()


class Holder:
    table = None


class Method:
    def __init__(self, table):
        self.table = table

    def score(self, s, b, h, i, j):
        return s * self.table[h]

    def __call__(self, s, b, h, i, j):
        return s * self.table[h]


class WithGlobal:
    def __call__(self, s, b, h, i, j):
        return s * GLOBAL[h]


def _helper(h):
    return GLOBAL[h]


def _partial(table, s, b, h, i, j):
    return s * table[h]


def _nested(table):
    def f(s, b, h, i, j):
        def inner(n):
            return GLOBAL[n]

        return s * inner(h)

    return f


def _default(table):
    def f(s, b, h, i, j, t=table):
        return s * t[h]

    return f


def _keyword_default(table):
    def f(s, b, h, i, j, *, t=table):
        return s * t[h]

    return f


def _with(owner, name, table):
    setattr(owner, name, table)
    return owner


SPELLINGS = {
    "closure": lambda t: lambda s, b, h, i, j: s * t[h],
    "global": lambda t: lambda s, b, h, i, j: s * GLOBAL[h],
    "global in a nested function": _nested,
    "helper function": lambda t: lambda s, b, h, i, j: s * _helper(h),
    "partial": lambda t: functools.partial(_partial, t),
    "partial by keyword": lambda t: functools.partial(lambda s, b, h, i, j, table: s * table[h], table=t),
    "default": _default,
    "keyword-only default": _keyword_default,
    "dictionary": lambda t: (lambda d: lambda s, b, h, i, j: s * d["t"][h])({"t": t}),
    "nested containers": lambda t: (lambda d: lambda s, b, h, i, j: s * d["t"][0][1][h])({"t": [(0, t)]}),
    "bound method": lambda t: Method(t).score,
    "callable object": Method,
    "callable object with a global": lambda t: WithGlobal(),
    "attribute of a class": lambda t: (lambda c: lambda s, b, h, i, j: s * c.table[h])(_with(Holder, "table", t)),
    "attribute of an object": lambda t: (lambda o: lambda s, b, h, i, j: s * o.table[h])(Method(t)),
    "namespace": lambda t: (_with(BOX, "table", t), lambda s, b, h, i, j: s * BOX.table[h])[1],
    "getattr": lambda t: (lambda o: lambda s, b, h, i, j: s * getattr(o, "table")[h])(Method(t)),
    "plain index": lambda t: lambda s, b, h, i, j: s * (t[0] * (h == 0) + t[1] * (h == 1)),
    "function of a plain index": lambda t: lambda s, b, h, i, j: s * (np.square(t[0]) * (h == 0) + t[1] * (h == 1) + 0.25 * (h == 0)),
    "slice": lambda t: lambda s, b, h, i, j: s * t[::-1][1 - h],
    "two slices": lambda t: lambda s, b, h, i, j: s * t[0:2][0:][h],
    "negative index": lambda t: lambda s, b, h, i, j: s * t[h - 2],
}  # fmt: skip
ATTRIBUTES = {"bound method", "callable object", "attribute of a class", "attribute of an object", "namespace", "getattr"}


def reference(values):
    q = mh.tensor(Q, requires_grad=True)
    s = Q @ np.swapaxes(K, -1, -2) / 2 * values[None, :, None, None]
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p @ V


def gradient(values):
    """The gradient of the sum of squares, by central differences."""
    steps = np.eye(2) * 1e-6
    return np.array([(np.sum(reference(values + e) ** 2) - np.sum(reference(values - e) ** 2)) / 2e-6 for e in steps])


@pytest.mark.parametrize("kind", ["numpy", "tensor", "learnt"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_captures(spelling, kind, monkeypatch):
    table = VALUES.copy() if kind == "numpy" else mh.tensor(VALUES.copy(), requires_grad=kind == "learnt")
    monkeypatch.setitem(globals(), "GLOBAL", table)
    function = SPELLINGS[spelling](table)
    if kind == "numpy" and spelling in ATTRIBUTES:
        with pytest.raises(TypeError, match="make a Tensor of it"):
            mh.score_mod(function)
        return
    mod = mh.score_mod(function)
    for step in range(3):  # the second step and the third as the first, and after an update
        with mh.Tape() as tape:
            out = mh.attention(Q, K, V, score_mod=mod)
            np.testing.assert_allclose(np.asarray(out), reference(np.asarray(table)), atol=1e-12)
            if kind == "learnt":
                tape.backward(mh.sum(mh.square(out)))
        if kind == "learnt":
            want = gradient(np.asarray(table)) if spelling != "function of a plain index" else None
            if want is not None:
                np.testing.assert_allclose(np.asarray(table.grad), want, atol=1e-6, err_msg=f"step {step}")
            table.grad = None
            if spelling != "function of a plain index":
                table.detach().numpy()[...] += 0.25


def test_a_function_of_a_plain_index_learns():
    table = mh.tensor(np.array([0.5, 2.0]), requires_grad=True)
    mod = mh.score_mod(lambda s, b, h, i, j: s * np.tanh(table[0]) * table[1])
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.square(mh.attention(Q, K, V, score_mod=mod))))
    whole = lambda x: np.sum(reference(np.full(2, np.tanh(x[0]) * x[1])) ** 2)  # noqa: E731
    want = [(whole([0.5 + e, 2 + f]) - whole([0.5 - e, 2 - f])) / 2e-6 for e, f in ((1e-6, 0), (0, 1e-6))]
    np.testing.assert_allclose(np.asarray(table.grad), want, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [lambda w: lambda s, b, h, i, j: s * mh.tanh(w)[h], lambda w: lambda s, b, h, i, j: s * (w * 2)[h],
     lambda w: lambda s, b, h, i, j: s * float(mh.sum(w)), lambda w: lambda s, b, h, i, j: s * mh.sum(w),
     lambda w: lambda s, b, h, i, j: s * w.reshape(1, 2)[0, h], lambda w: lambda s, b, h, i, j: s * np.tanh(w)[h],
     lambda w: lambda s, b, h, i, j: s * mh.mean(w).item(), lambda w: lambda s, b, h, i, j: s * np.sum(w)],
)  # fmt: skip
def test_a_gradient_that_would_be_lost_is_refused(function):
    w = mh.tensor(VALUES, requires_grad=True)
    with pytest.raises(TypeError, match="gradient"):
        mh.score_mod(function(w))
    if "tanh" not in function.__code__.co_consts[1].co_names or "np" not in function.__code__.co_consts[1].co_names:
        mh.score_mod(function(w.detach()))  # a constant may be computed with


def test_a_result_of_the_tape_of_the_step_learns():
    w = mh.tensor(np.array([0.3, -0.4]), requires_grad=True)
    with mh.Tape() as tape:
        table = mh.exp(w)
        mod = mh.score_mod(lambda s, b, h, i, j: s * table[h])
        tape.backward(mh.sum(mh.square(mh.attention(Q, K, V, score_mod=mod))))
    np.testing.assert_allclose(np.asarray(w.grad), gradient(np.exp(np.asarray(w))) * np.exp(np.asarray(w)), atol=1e-6)
    with pytest.raises(TypeError, match="gradient"):  # its tape has ended
        mh.score_mod(lambda s, b, h, i, j: s * table[h])


def test_tracing_reads_the_world_of_now():
    for value in ("2", "3"):
        os.environ["MULTIHEAD_TEST_FACTOR"] = value
        mod = mh.score_mod(lambda s, b, h, i, j: s * float(os.environ["MULTIHEAD_TEST_FACTOR"]))
        np.testing.assert_allclose(np.asarray(mh.attention(Q, K, V, score_mod=mod)), reference(np.full(2, float(value))))
    del os.environ["MULTIHEAD_TEST_FACTOR"]


@pytest.mark.parametrize(
    "function, text",
    [(lambda s, b, h, i, j: s + __import__("math").log(i + 1), "NumPy's functions"),
     (lambda s, b, h, i, j: s + float(i), "NumPy's functions"),
     (lambda s, b, h, i, j: s + [1, 2][h], "make a Tensor"),
     (lambda s, b, h, i, j: s if i > j else -s, "control flow"),
     (lambda s, b, h, i, j: s + np.ma.masked_array([1.0, 2.0], [0, 1])[h], "Tensor|mask"),
     (lambda s, b, h, i, j: s + mh.ones((4, 4))[i, :][j:][0], "bounds"),
     (lambda s, b, h, i, j: s + mh.ones((4, 4))[i], "4. values")],
)  # fmt: skip
def test_refusals_name_the_cause(function, text):
    with pytest.raises(TypeError, match=text):
        mh.score_mod(function)


def test_a_torch_parameter_gets_its_gradient_or_a_refusal():
    torch = pytest.importorskip("torch")
    w = torch.tensor(VALUES, requires_grad=True)
    with pytest.raises(TypeError, match="multihead.torch.flex_attention"):
        mh.score_mod(lambda s, b, h, i, j: s * w[h])
    mod = mh.score_mod(lambda s, b, h, i, j: s * w.detach()[h])
    np.testing.assert_allclose(np.asarray(mh.attention(Q, K, V, score_mod=mod)), reference(VALUES), atol=1e-12)
