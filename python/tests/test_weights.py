"""Weights that go through no softmax: published variants against plain f64 PyTorch, forward and backward."""

import math

import numpy as np
import pytest

import multihead as mh

torch = pytest.importorskip("torch")


def leaf(x):
    return mh.tensor(x, requires_grad=True)


def run_ours(arrays, call):
    leaves = [leaf(x) for x in arrays]
    with mh.Tape() as tape:
        out = call(*leaves)
        tape.backward(mh.sum(out * weights_like(out)))
    return out.numpy(), [x.grad.numpy() for x in leaves]


def weights_like(out):
    return mh.tensor(np.cos(np.arange(out.numpy().size)).reshape(out.numpy().shape).astype(out.numpy().dtype))


def run_torch(arrays, call):
    leaves = [torch.tensor(x.astype("f8"), requires_grad=True) for x in arrays]
    out = call(*leaves)
    (out * torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape)).sum().backward()
    return out.detach().numpy(), [x.grad.numpy() for x in leaves]


def scores(q, k):
    group = q.shape[1] // k.shape[1]
    return q @ k.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(q.shape[-1])


def values(w, v):
    return w @ v.repeat_interleave(w.shape[1] // v.shape[1], 1)


def causal_of(s, offset):
    t, n = s.shape[-2:]
    return torch.arange(n)[None, :] <= torch.arange(t)[:, None] + offset


RATE = 0.9


def sigmoid_attention(q, k, v, mask):
    return mh.attention(q, k, v, mask=mask, normalise="none",
                        weight=mh.score_mod(lambda s, b, h, i, j: 1 / (1 + np.exp(-(s - 2.0)))))


def relu_attention(q, k, v, mask):
    return mh.attention(q, k, v, mask=mask, normalise="sum",
                        weight=mh.score_mod(lambda s, b, h, i, j: np.maximum(s, 0) + 0.1))


def polynomial_attention(q, k, v, mask):
    return mh.attention(q, k, v, mask=mask, normalise="sum", weight=mh.score_mod(lambda s, b, h, i, j: s**4 + 0.1))


def retention(q, k, v, mask):
    decay = lambda s, b, h, i, j: s * RATE ** (i - j)  # noqa: E731
    return mh.attention(q, k, v, mask=mask, normalise="abs_sum", weight=mh.score_mod(decay))


def softpick(q, k, v, mask):
    """The numerator in one pass, the denominator as another's normaliser."""
    kept = mh.score_mod(lambda s, b, h, i, j: np.maximum(np.exp(s) - 1, 0))
    signed = mh.score_mod(lambda s, b, h, i, j: np.exp(s) - 1)
    top = mh.attention(q, k, v, mask=mask, normalise="none", weight=kept)
    _, by = mh.attention(q, k, v, mask=mask, normalise="abs_sum", weight=signed, return_lse=True)
    return top / mh.reshape(by + 1e-3, (*by.shape, 1))


def cosformer(q, k, v, mask):
    turn = lambda s, b, h, i, j: np.maximum(s + 3, 0) * np.cos((i - j) * (math.pi / 2 / 400))  # noqa: E731
    return mh.attention(q, k, v, mask=mask, normalise="sum", weight=mh.score_mod(turn))


def theirs_sigmoid(s, seen):
    return torch.sigmoid(s - 2) * seen


def theirs_relu(s, seen):
    w = (s.clamp(min=0) + 0.1) * seen
    return w / w.sum(-1, keepdim=True)


def theirs_polynomial(s, seen):
    w = (s**4 + 0.1) * seen
    return w / w.sum(-1, keepdim=True)


def distances(s, offset):
    t, n = s.shape[-2:]
    return (torch.arange(t)[:, None] + offset - torch.arange(n)[None, :]).double()


def theirs_retention(s, seen):
    w = s * torch.where(seen, RATE ** distances(s, s.shape[-1] - s.shape[-2]), 0.0)
    return w / w.abs().sum(-1, keepdim=True)


def theirs_softpick(s, seen):
    w = (torch.exp(s) - 1) * seen
    return w.clamp(min=0) / (w.abs().sum(-1, keepdim=True) + 1e-3)


def theirs_cosformer(s, seen):
    w = (s + 3).clamp(min=0) * torch.cos(distances(s, s.shape[-1] - s.shape[-2]) * (math.pi / 2 / 400)) * seen
    return w / w.sum(-1, keepdim=True)


VARIANTS = {
    "sigmoid": (sigmoid_attention, theirs_sigmoid),
    "relu": (relu_attention, theirs_relu),
    "polynomial": (polynomial_attention, theirs_polynomial),
    "retention": (retention, theirs_retention),
    "softpick": (softpick, theirs_softpick),
    "cosformer": (cosformer, theirs_cosformer),
}
SHAPES = [(1, 1, 1), (4, 37, 37), (2, 5, 70), (4, 130, 130), (2, 300, 300)]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kv_heads,queries,keys", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_variants_are_those_of_pytorch(name, kv_heads, queries, keys, causal):
    ours, theirs = VARIANTS[name]
    rng = np.random.default_rng(queries)
    shapes = [(2, 4, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 6)]
    arrays = [rng.standard_normal(s) for s in shapes]

    def reference(q, k, v):
        s = scores(q, k)
        seen = causal_of(s, keys - queries) if causal else torch.ones_like(s, dtype=torch.bool)
        return values(theirs(s, seen), v)

    want, want_gradients = run_torch(arrays, reference)
    mask = mh.causal() if causal else None
    for dtype, bound in (("f8", 1e-12), ("f4", 3e-5)):
        out, gradients = run_ours([x.astype(dtype) for x in arrays], lambda q, k, v: ours(q, k, v, mask))
        for a, b in zip([out, *gradients], [want, *want_gradients]):
            assert np.abs(a - b).max() <= bound * max(1, np.abs(b).max()), (dtype, np.abs(a - b).max())


def test_slots_share_their_keys_in_one_pass():
    """Slot attention: a softmax over the queries, whose normaliser is captured, then a mean over the keys."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s) for s in ((2, 1, 7, 8), (2, 1, 90, 8), (2, 1, 90, 8))]

    def ours(q, k, v):
        _, by = mh.attention(k, q, q, return_lse=True)
        share = mh.score_mod(lambda s, b, h, i, j: np.exp(s - by[b, h, j]))
        return mh.attention(q, k, v, normalise="sum", weight=share)

    def theirs(q, k, v):
        w = scores(q, k).softmax(-2)
        return w / w.sum(-1, keepdim=True) @ v

    want, want_gradients = run_torch(arrays, theirs)
    out, gradients = run_ours(arrays, ours)
    for a, b in zip([out, *gradients], [want, *want_gradients]):
        assert np.abs(a - b).max() <= 1e-12 * max(1, np.abs(b).max())


def sorted_scores(s, seen):
    z = s.masked_fill(~seen, -1e6).sort(-1, descending=True).values
    return z, torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)


def sparsemax_threshold(s, seen):
    z, count = sorted_scores(s, seen)
    sums = z.cumsum(-1) - 1
    support = (count * z > sums).sum(-1, keepdim=True)
    return sums.gather(-1, support - 1) / support


def entmax_threshold(s, seen):
    z, count = sorted_scores(s / 2, seen)
    mean, squares = z.cumsum(-1) / count, (z * z).cumsum(-1) / count
    t = mean - torch.sqrt(((1 - count * (squares - mean * mean)) / count).clamp(min=0))
    support = (t <= z).sum(-1, keepdim=True)
    return t.gather(-1, support - 1)


def theirs_thresholds(s, seen, normalise):
    if normalise == "sparsemax":
        return (s - sparsemax_threshold(s, seen)).clamp(min=0) * seen
    return (s / 2 - entmax_threshold(s, seen)).clamp(min=0) ** 2 * seen


@pytest.mark.parametrize("normalise", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("kv_heads,queries,keys", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_weights_above_a_threshold(normalise, kv_heads, queries, keys, causal):
    rng = np.random.default_rng(queries)
    shapes = [(2, 4, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 6), (4, queries, keys)]
    arrays = [rng.standard_normal(s) * (3 if n == 0 else 1) for n, s in enumerate(shapes)]

    def reference(q, k, v, bias):
        s = scores(q, k) + bias
        seen = causal_of(s, keys - queries) if causal else torch.ones_like(s, dtype=torch.bool)
        return values(theirs_thresholds(s, seen, normalise), v)

    want, want_gradients = run_torch(arrays, reference)
    mask = mh.causal() if causal else None
    for dtype, bound in (("f8", 1e-11), ("f4", 1e-4)):
        out, gradients = run_ours(
            [x.astype(dtype) for x in arrays],
            lambda q, k, v, bias: mh.attention(q, k, v, mask=mask, bias=bias, normalise=normalise),
        )
        for a, b in zip([out, *gradients], [want, *want_gradients]):
            assert np.abs(a - b).max() <= bound * max(1, np.abs(b).max()), (dtype, np.abs(a - b).max())


@pytest.mark.parametrize("normalise", ["sparsemax", "entmax15"])
def test_thresholds_of_other_forms_of_call(normalise):
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, h, 90, 8)).astype("f4") for h in (4, 2, 2))
    call = lambda q, k, v, **more: mh.attention(q, k, v, normalise=normalise, **more)  # noqa: E731
    whole = call(q, k, v, mask=mh.causal()).numpy()
    assert np.array_equal(call(q[1:, :, -1:], k[1:], v[1:], mask=mh.causal()).numpy(), whole[1:, :, -1:])
    threads = mh.num_threads()
    mh.set_num_threads(3 - min(threads, 2))
    assert np.array_equal(call(q, k, v, mask=mh.causal()).numpy(), whole)
    mh.set_num_threads(threads)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    assert np.array_equal(call(*swapped, mask=mh.causal(), layout="bthd").numpy(), whole.swapaxes(1, 2))
    joined = np.concatenate([x.reshape(2, 90, -1) for x in swapped], -1)
    packed = mh.attention_packed(joined, 4, 2, mask=mh.causal(), normalise=normalise).numpy()
    assert np.array_equal(packed, whole.swapaxes(1, 2).reshape(2, 90, -1))
    rows = [x.reshape(180, -1, 8) for x in swapped]
    ends = np.array([0, 70, 180])
    ragged, t = mh.attention_ragged(*rows, ends, ends, mask=mh.causal(), normalise=normalise, return_lse=True)
    assert np.array_equal(ragged.numpy()[:70], whole.swapaxes(1, 2)[0, :70]) and t.shape == (4, 180)
    with pytest.raises(ValueError, match="takes no weight="):
        call(q, k, v, weight=mh.score_mod(lambda s, b, h, i, j: s))
    with pytest.raises(ValueError, match="score_mod does not go with"):
        call(q, k, v, score_mod=mh.score_mod(lambda s, b, h, i, j: s))
    empty = call(q, k, v, mask=mh.lengths(np.array([0, 90]))).numpy()
    assert (empty[0] == 0).all() and np.isfinite(empty).all()


@pytest.mark.parametrize("normalise", ["sum", "abs_sum", "none"])
def test_the_normaliser_is_a_result_with_a_gradient(normalise):
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(s) for s in ((1, 2, 20, 4), (1, 2, 30, 4), (1, 2, 30, 4))]

    def ours(q, k, v):
        weight = mh.score_mod(lambda s, b, h, i, j: s * np.exp(s / 2))
        out, by = mh.attention(q, k, v, normalise=normalise, weight=weight, return_lse=True)
        return out * mh.reshape(by * by, (1, 2, 20, 1))

    def theirs(q, k, v):
        s = scores(q, k)
        w = s * torch.exp(s / 2)
        by = {"sum": w.sum(-1), "abs_sum": w.abs().sum(-1), "none": torch.ones_like(w[..., 0])}[normalise]
        return w / by[..., None] @ v * (by * by)[..., None]

    want, want_gradients = run_torch(arrays, theirs)
    out, gradients = run_ours(arrays, ours)
    for a, b in zip([out, *gradients], [want, *want_gradients]):
        assert np.abs(a - b).max() <= 1e-11 * max(1, np.abs(b).max())


def test_captured_tensors_learn_beside_biases_and_softcap():
    rng = np.random.default_rng(5)
    shapes = ((2, 2, 33, 8), (2, 2, 40, 8), (2, 2, 40, 8), (2,), (2, 33, 40))
    arrays = [rng.standard_normal(s) for s in shapes]
    flags = rng.random((2, 3, 5)) < 0.6
    flags[:, :, 0] = True

    def ours(q, k, v, gain, bias):
        weight = mh.score_mod(lambda s, b, h, i, j: np.exp(s * gain[h]))
        return mh.attention(q, k, v, normalise="sum", weight=weight, softcap=2.0, bias=bias, mask=mh.blocks(flags, 16, 8))

    def theirs(q, k, v, gain, bias):
        s = 2 * torch.tanh(scores(q, k) / 2) + bias
        seen = torch.tensor(flags.repeat(16, 1)[:, :33].repeat(8, 2))
        w = torch.exp(s * gain[:, None, None]) * seen
        return w / w.sum(-1, keepdim=True) @ v

    want, want_gradients = run_torch(arrays, theirs)
    for dtype, bound in (("f8", 1e-12), ("f4", 1e-4)):
        out, gradients = run_ours([x.astype(dtype) for x in arrays], ours)
        for a, b in zip([out, *gradients], [want, *want_gradients]):
            assert np.abs(a - b).max() <= bound * max(1, np.abs(b).max()), dtype


@pytest.mark.parametrize("normalise", ["sum", "none"])
def test_the_bits_of_rows_alone_threads_and_sequences(normalise):
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((1, h, 300, 32)).astype("f4") for h in (4, 2, 2))
    weight = mh.score_mod(lambda s, b, h, i, j: 1 / (1 + np.exp(-s)))
    call = lambda q, k, v, **more: mh.attention(q, k, v, weight=weight, normalise=normalise, **more).numpy()  # noqa: E731
    whole = call(q, k, v, mask=mh.causal())
    for end in (1, 64, 257, 300):  # as a cache has it: the last query against all keys so far
        step = call(q[:, :, end - 1 : end], k[:, :, :end], v[:, :, :end], mask=mh.causal())
        assert np.array_equal(step, whole[:, :, end - 1 : end])
    threads = mh.num_threads()
    mh.set_num_threads(3 - min(threads, 2))
    again = call(q, k, v, mask=mh.causal())
    few = call(q[:, :, :2], np.tile(k, (1, 1, 9, 1)), np.tile(v, (1, 1, 9, 1)))  # split over the keys
    mh.set_num_threads(threads)
    assert np.array_equal(again, whole)
    assert np.array_equal(few, call(q[:, :, :2], np.tile(k, (1, 1, 9, 1)), np.tile(v, (1, 1, 9, 1))))
    rows = np.concatenate([q[0, :, :70], q[0, :, 70:300]], 1).swapaxes(0, 1)
    packed = [x[0].swapaxes(0, 1).copy() for x in (k, v)]
    offsets = np.array([0, 70, 300])
    ragged = mh.attention_ragged(rows.copy(), *packed, offsets, offsets, weight=weight, normalise=normalise,
                                 mask=mh.causal()).numpy()
    assert np.array_equal(ragged[:70], whole[0, :, :70].swapaxes(0, 1))


def test_half_precision_inputs_are_as_exact_as_their_rounding():
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((1, 2, 70, 16)).astype("f4") for _ in range(3)]
    half = [mh.tensor(x).to("bfloat16") for x in arrays]
    wide = [x.to("float64").numpy() for x in half]
    weight = mh.score_mod(lambda s, b, h, i, j: s * s)
    got = mh.attention(*half, weight=weight, normalise="sum").to("float64").numpy()
    s = np.einsum("bhid,bhjd->bhij", wide[0], wide[1]) / 4
    want = np.einsum("bhij,bhjd->bhid", s * s / (s * s).sum(-1, keepdims=True), wide[2])
    assert np.abs(got - want).max() < 0.004


def test_rows_without_keys_or_whose_weights_add_up_to_nothing_are_zeros():
    x = np.ones((1, 1, 3, 4), "f4")
    valid = mh.lengths(np.array([[0, 1, 3]]))
    for normalise in ("sum", "abs_sum", "none"):
        out, by = mh.attention(x, x, x, mask=valid, normalise=normalise, return_lse=True)
        assert (out.numpy()[0, 0, 0] == 0).all() and by.numpy()[0, 0, 0] == 0
        assert np.isfinite(out.numpy()).all()
    nothing = mh.score_mod(lambda s, b, h, i, j: s * 0)
    assert (mh.attention(x, x, x, weight=nothing, normalise="sum").numpy() == 0).all()
    with pytest.raises(mh.ValueError if hasattr(mh, "ValueError") else ValueError, match="whose sum is 0"):
        mh.attention(x, x, x, weight=nothing, normalise="sum", empty_row="error")
    # What is excluded is not touched, whatever it holds.
    bad = x.copy()
    bad[0, 0, 2] = np.nan
    out = mh.attention(x, bad, bad, mask=mh.lengths(np.array([2])), normalise="sum")
    assert np.isfinite(out.numpy()).all()


def test_combinations_without_a_meaning_are_refused_by_name():
    x = np.ones((1, 2, 3, 4), "f4")
    f = mh.score_mod(lambda s, b, h, i, j: s * s)
    for wanted, options in {
        "takes normalise='sum'": dict(weight=f),
        "the function is weight=": dict(score_mod=f, normalise="sum"),
        "are one function": dict(score_mod=f, weight=f, normalise="sum"),
        "sinks belongs to a softmax": dict(sinks=np.zeros(2, "f4"), normalise="sum"),
        "capture belongs to a softmax": dict(capture=mh.AttentionCapture(), normalise="none"),
        "uniform belongs to a softmax": dict(empty_row="uniform", normalise="none"),
        "normalise": dict(normalise="mean"),
    }.items():
        with pytest.raises(ValueError, match=wanted):
            mh.attention(x, x, x, **options)


def test_a_layer_decodes_with_weights():
    rng = mh.Rng(0)
    layer = mh.nn.TransformerLayer(embed_dim=32, num_heads=2, norm_first=True, rng=rng)
    x = mh.randn((1, 10, 32), rng)
    options = dict(mask=mh.causal(), weight=mh.score_mod(lambda s, b, h, i, j: 1 / (1 + np.exp(-s))), normalise="sum")
    whole = layer(x, **options).numpy()
    state = layer.make_state(1, 32)
    parts = [layer(mh.slice(x, 1, 0, 6), state=state, **options).numpy()]
    parts += [layer(mh.slice(x, 1, t, t + 1), state=state, **options).numpy() for t in range(6, 10)]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    assert not np.array_equal(layer(x, mask=mh.causal()).numpy(), whole)
