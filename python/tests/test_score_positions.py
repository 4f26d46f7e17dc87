"""The query index of score and mask functions: the position among the keys, as in C++; `row` is the other."""

import numpy as np
import pytest

import multihead as mh

RNG = np.random.default_rng(3)


def tensors(tq, tk, batch=1, dtype="f8"):
    shapes = [(batch, 2, tq, 4), (batch, 2, tk, 4), (batch, 2, tk, 4)]
    return [mh.tensor(RNG.standard_normal(s).astype(dtype), requires_grad=True) for s in shapes]


def reference(q, k, v, score, allowed):
    """Attention by its definition, of f64 arrays: score(s, b, h, i, j) and allowed(b, h, i, j) over index grids."""
    q, k, v = (np.asarray(x, "f8") for x in (q, k, v))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    at = np.meshgrid(*(np.arange(n) for n in s.shape), indexing="ij")
    s = np.where(allowed(*at), score(s, *at), -np.inf)
    p = np.exp(s - np.max(np.where(np.isfinite(s), s, -1e9), -1, keepdims=True))
    total = p.sum(-1, keepdims=True)
    return np.divide(p, total, out=np.zeros_like(p), where=total > 0) @ v


def everything(b, h, i, j):
    return i >= -1


@pytest.mark.parametrize("tq, tk", [(2, 6), (6, 6), (70, 130), (5, 3)])
def test_position_and_row_in_a_score_function(tq, tk):
    q, k, v = tensors(tq, tk)
    table = RNG.standard_normal((2, 300))
    by_position = mh.score_mod(lambda s, b, h, i, j: s - 0.1 * i * (h + 1) + table[h, i - j + 140])
    want = reference(q, k, v, lambda s, b, h, i, j: s - 0.1 * (i + tk - tq) * (h + 1) + table[h, i + tk - tq - j + 140],
                     everything)  # fmt: skip
    np.testing.assert_allclose(np.asarray(mh.attention(q, k, v, score_mod=by_position)), want, atol=1e-12)
    by_row = mh.score_mod(lambda s, b, h, i, j, row: s + table[h, row] * (i - row))
    want = reference(q, k, v, lambda s, b, h, i, j: s + table[h, i] * (tk - tq), everything)
    np.testing.assert_allclose(np.asarray(mh.attention(q, k, v, score_mod=by_row)), want, atol=1e-12)


@pytest.mark.parametrize("align, offset", [("end", 5), ("start", 0), (2, 2)])
def test_the_mask_aligns_a_score_function(align, offset):
    q, k, v = tensors(4, 9)
    mod = mh.score_mod(lambda s, b, h, i, j: s + 0.1 * i * j)
    out = mh.attention(q, k, v, mask=mh.causal(align=align), score_mod=mod)
    want = reference(q, k, v, lambda s, b, h, i, j: s + 0.1 * (i + offset) * j, lambda b, h, i, j: j <= i + offset)
    np.testing.assert_allclose(np.asarray(out), want, atol=1e-12)


CONDITIONS = {
    "causal": lambda b, h, i, j: j <= i,
    "window": lambda b, h, i, j: (j <= i) & (i - j < 4),
    "sinks and window": lambda b, h, i, j: (j <= i) & ((i - j < 3) | (j < 2)),
    "per head": lambda b, h, i, j: (j <= i) & ((i - j) % (h + 2) == 0),
    "not causal": lambda b, h, i, j: (i - j < 5) & (j - i < 2),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("align, offset", [("end", None), ("start", 0), (3, 3)])
def test_position_in_a_mask_function(name, align, offset):
    condition = CONDITIONS[name]
    for tq, tk in ((3, 11), (8, 8), (70, 140), (1, 67)):
        at = tk - tq if offset is None else offset
        q, k, v = tensors(tq, tk)
        out = mh.attention(q, k, v, mask=mh.mask_mod(condition, align=align))
        want = reference(q, k, v, lambda s, *_: s, lambda b, h, i, j: condition(b, h, i + at, j))
        np.testing.assert_allclose(np.asarray(out), want, atol=1e-12)


def test_row_in_a_mask_function():
    q, k, v = tensors(3, 7)
    out = mh.attention(q, k, v, mask=mh.mask_mod(lambda b, h, i, j, row: (j <= row) & (i - row == 4)))
    want = reference(q, k, v, lambda s, *_: s, lambda b, h, i, j: j <= i)
    np.testing.assert_allclose(np.asarray(out), want, atol=1e-12)


def test_gradients_of_a_table_by_position():
    tq, tk = 3, 8
    q, k, v = tensors(tq, tk)
    table = mh.tensor(RNG.standard_normal((2, 16)), requires_grad=True)
    mod = mh.score_mod(lambda s, b, h, i, j: s + table[h, i - j + 7])
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.square(mh.attention(q, k, v, score_mod=mod))))
    got, table.grad = np.asarray(table.grad).copy(), None
    bias = np.arange(tq)[:, None] + tk - tq - np.arange(tk)[None, :] + 7
    onehot = np.zeros((tq * tk, 16))
    onehot[np.arange(tq * tk), bias.reshape(-1)] = 1
    with mh.Tape() as tape:
        dense = mh.reshape(mh.matmul(table, mh.tensor(onehot.T.copy())), (1, 2, tq, tk))
        tape.backward(mh.sum(mh.square(mh.attention(q, k, v, bias=dense))))
    np.testing.assert_allclose(got, np.asarray(table.grad), atol=1e-12)


def modifications():
    table = RNG.standard_normal((2, 64)).astype("f4")
    for name, condition in CONDITIONS.items():
        yield f"mask {name}", {"mask": mh.mask_mod(condition)}
    yield "named window", {"mask": mh.window(3, 0)}
    yield "mask and named", {"mask": mh.mask_mod(CONDITIONS["per head"]) & mh.window(5, 0)}
    yield "named and mask", {"mask": mh.window(5, 0) & mh.mask_mod(CONDITIONS["per head"])}
    yield "relative", {"score_mod": mh.score_mod(lambda s, b, h, i, j: s + table[h, i - j + 32])}
    yield "absolute", {"score_mod": mh.score_mod(lambda s, b, h, i, j: s + table[h, i] * table[h, j])}
    yield "distance", {"score_mod": mh.score_mod(lambda s, b, h, i, j: s - 0.3 * abs(i - j))}
    yield "both", {"score_mod": mh.score_mod(lambda s, b, h, i, j: s + 0.1 * i),
                   "mask": mh.mask_mod(CONDITIONS["window"])}  # fmt: skip


@pytest.mark.parametrize("name, options", [pytest.param(*x, id=x[0]) for x in modifications()])
def test_cached_steps_equal_the_whole(name, options):
    """Chunks of several sizes, and rows that hold unequal numbers of tokens."""
    layer = mh.nn.TransformerLayer(embed_dim=16, num_heads=2, norm_first=True, rng=mh.Rng(0))
    x = np.asarray(mh.randn((2, 12, 16), mh.Rng(1)))
    causal = {**options, "mask": options.get("mask", mh.Mask()) & mh.causal()}
    whole = [np.asarray(layer(x[b : b + 1], **causal))[0] for b in range(2)]
    for counts in ([[5, 2], [1, 4], [3, 3], [3, 1]], [[1, 1]] * 8, [[12, 7]]):
        state, held, longest = layer.make_state(2, 16), [0, 0], max(max(c) for c in counts)
        for count in counts:
            step = np.zeros((2, longest, 16), "f4")
            for b in range(2):
                step[b, : count[b]] = x[b, held[b] : held[b] + count[b]]
            out = np.asarray(layer(step, state=state, counts=count, **options))
            for b in range(2):
                want = whole[b][held[b] : held[b] + count[b]]
                np.testing.assert_allclose(out[b, : count[b]], want, atol=2e-6, err_msg=f"{name} {counts}")
                held[b] += count[b]


@pytest.mark.parametrize("kind", ["score_mod", "mask_mod"])
def test_a_windowed_state_that_has_dropped_tokens_is_refused(kind):
    layer, attention = mh.nn.TransformerLayer(embed_dim=8, num_heads=2), mh.nn.MultiHeadAttention(8, 2)
    options = {"score_mod": mh.score_mod(lambda s, b, h, i, j: s + 0.1 * j)} if kind == "score_mod" else {
        "mask": mh.mask_mod(lambda b, h, i, j: (i - j < 3) | (j < 1))}  # fmt: skip
    x = np.asarray(mh.randn((1, 1, 8), mh.Rng(1)))
    for module, step in ((layer, lambda s: layer(x, state=s, **options)),
                         (attention, lambda s: attention.decode(x, s, **options))):  # fmt: skip
        state = module.make_state(1, 258, window=3)
        for _ in range(258):
            step(state)
        with pytest.raises(ValueError, match="has dropped tokens"):
            step(state)
