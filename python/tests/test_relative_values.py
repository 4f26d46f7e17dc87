"""Relative values: Shaw et al. 2018's keys and values against plain PyTorch, with every gradient, and their bits."""

import math

import numpy as np
import pytest

import multihead as mh

H, G = 4, 2


def index(tq, tk, span, center=None):
    """The row of a table that query i and key j meet, queries at the end."""
    distance = np.arange(tk)[None] - (np.arange(tq)[:, None] + tk - tq)
    return np.clip(distance + ((span - 1) // 2 if center is None else center), 0, span - 1)


def arrays(dtype, tq, tk, d, dv, span, heads=1, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(batch, H, tq, d), (batch, G, tk, d), (batch, G, tk, dv), (heads, span, d), (heads, span, dv)]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def plain(torch, q, k, v, rk, rv, allowed=None, dropped=1.0, center=None):
    """Attention whose keys and values depend on the distance, by its definition."""
    at = torch.tensor(index(q.shape[2], k.shape[2], rk.shape[1], center))
    at_value = torch.tensor(index(q.shape[2], k.shape[2], rv.shape[1], center))
    wide = [x.repeat_interleave(H // G, 1) for x in (k, v)]
    tables = [x.expand(H, -1, -1) for x in (rk, rv)]
    s = q @ wide[0].transpose(-1, -2) + torch.einsum("bhid,hijd->bhij", q, tables[0][:, at])
    s = s / math.sqrt(q.shape[3])
    p = (s if allowed is None else s.masked_fill(~allowed, -math.inf)).softmax(-1) * dropped
    return p @ wide[1] + torch.einsum("bhij,hijd->bhid", p, tables[1][:, at_value])


# (queries, keys, D, Dv, span, heads of the tables, causal, relative_center)
SHAPES = [
    (37, 37, 16, 16, 9, 1, True, None),
    (70, 70, 8, 24, 139, H, False, None),
    (5, 300, 16, 8, 33, H, True, None),
    (300, 300, 16, 20, 33, 1, False, None),
    (130, 290, 8, 16, 579, 1, True, 289),
    (1, 270, 16, 33, 17, H, True, None),
    (20, 40, 8, 600, 5, 1, False, 0),
    (3, 1, 8, 8, 1, 1, False, None),
]


@pytest.mark.parametrize("dtype, bound", [("f8", 1e-12), ("f4", 5e-6)])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_pytorchs(shape, dtype, bound):
    torch = pytest.importorskip("torch")
    tq, tk, d, dv, span, heads, causal, center = shape
    given = arrays(dtype, tq, tk, d, dv, span, heads)
    ours = [mh.tensor(x, requires_grad=True) for x in given]
    theirs = [torch.tensor(x.astype("f8"), requires_grad=True) for x in given]
    allowed = torch.ones(tq, tk, dtype=torch.bool).tril(tk - tq) if causal else None
    want = plain(torch, *theirs, allowed, center=center)
    seen = np.ones(tq, bool) if allowed is None else allowed.any(-1).numpy()
    weight = np.random.default_rng(1).standard_normal(want.shape) * seen[:, None]
    want = torch.where(torch.tensor(seen)[:, None], want, 0)
    (want * torch.tensor(weight)).sum().backward()
    with mh.Tape() as tape:
        out = mh.attention(*ours[:3], relative_key=ours[3], relative_value=ours[4], mask=mh.causal() if causal else None,
                           **({} if center is None else {"relative_center": center}))  # fmt: skip
        tape.backward(mh.sum(out * mh.tensor(weight.astype(dtype))))
    names = ["out", "query", "key", "value", "relative_key", "relative_value"]
    for name, a, b in zip(names, [out, *(x.grad for x in ours)], [want, *(x.grad for x in theirs)]):
        a, b = a.detach().numpy(), b.detach().numpy()
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * max(1, np.abs(b).max()), err_msg=name)


def test_dropout_masks_and_score_functions_act_on_both():
    torch = pytest.importorskip("torch")
    given = arrays("f4", 150, 150, 16, 16, 21)
    keep = np.random.default_rng(2).random((150, 150)) < 0.3
    keep |= np.eye(150, dtype=bool)
    capture = mh.AttentionCapture(stage="after_dropout")
    ours = [mh.tensor(x, requires_grad=True) for x in given]
    with mh.Tape() as tape:
        out = mh.attention(*ours[:3], relative_value=ours[4], mask=mh.keep(keep), dropout_p=0.4, rng=mh.Rng(3))
        tape.backward(mh.sum(mh.square(out)))
    mh.attention(*given[:3], relative_value=given[4], mask=mh.keep(keep), dropout_p=0.4, rng=mh.Rng(3), capture=capture)
    dropped = torch.tensor((capture.weights.numpy() > 0) / 0.6)
    theirs = [torch.tensor(x.astype("f8"), requires_grad=True) for x in given]
    want = plain(torch, *theirs[:3], torch.zeros_like(theirs[3]), theirs[4], torch.tensor(keep), dropped)
    want.square().sum().backward()
    for a, b in zip([out, ours[0].grad, ours[2].grad, ours[4].grad], [want, theirs[0].grad, theirs[2].grad, theirs[4].grad]):
        b = b.detach().numpy()
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()))


@pytest.mark.parametrize("span", [9, 1199])
def test_the_same_bits_for_threads_batch_and_chunks(span):
    q, k, v, rk, rv = arrays("f4", 600, 600, 16, 24, span, H, 1)
    whole = mh.attention(q, k, v, relative_key=rk, relative_value=rv, mask=mh.causal()).numpy()
    threads = mh.num_threads()
    for count in (1, 3):
        mh.set_num_threads(count)
        assert np.array_equal(mh.attention(q, k, v, relative_key=rk, relative_value=rv, mask=mh.causal()).numpy(), whole)
    mh.set_num_threads(threads)
    for begin, end in ((0, 1), (1, 100), (100, 333), (333, 599), (599, 600)):
        part = mh.attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], relative_key=rk, relative_value=rv,
                            mask=mh.causal())  # fmt: skip
        assert np.array_equal(part.numpy(), whole[:, :, begin:end]), (begin, end)
    twice = [np.concatenate([x[:, :, ::-1], x]) for x in (q, k, v)]
    both = mh.attention(*twice, relative_key=rk, relative_value=rv, mask=mh.causal()).numpy()
    assert np.array_equal(both[1:], whole)


def test_what_is_excluded_is_not_touched():
    q, k, v, _, rv = arrays("f4", 90, 90, 8, 20, 179)
    want = mh.attention(q, k, v, relative_value=rv, mask=mh.causal()).numpy()
    rv[:, 90:] = np.nan  # distances that no causal pair has
    x = [mh.tensor(a, requires_grad=True) for a in (q, k, v, rv)]
    with mh.Tape() as tape:
        out = mh.attention(*x[:3], relative_value=x[3], mask=mh.causal())
        tape.backward(mh.sum(out))
    assert np.array_equal(out.detach().numpy(), want)
    assert all(np.isfinite(a.grad.numpy()).all() for a in x)
    assert not x[3].grad.numpy()[:, 90:].any()


def test_16_bits():
    q, k, v, _, rv = arrays("f4", 70, 70, 16, 16, 9)
    want = mh.attention(q, k, v, relative_value=rv).numpy()
    for dtype, bound in (("bfloat16", 3e-2), ("float16", 4e-3)):
        narrow = [mh.cast(mh.tensor(a), dtype) for a in (q, k, v)]
        got = mh.cast(mh.attention(*narrow, relative_value=rv), "float32").numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def test_what_has_no_meaning_is_refused():
    q, k, v, _, rv = arrays("f4", 7, 7, 8, 12, 5)
    with pytest.raises(mh.ShapeError, match=r"relative_value must be \[H=4, span, Dv=12\] or \[1, span, Dv\], got \[1, 5, 8\]"):
        mh.attention(q, k, v, relative_value=rv[..., :8])
    with pytest.raises(ValueError, match="empty_row = uniform gives the mean of all values; not with relative_value"):
        mh.attention(q, k, v, relative_value=rv, empty_row="uniform")
    with pytest.raises(ValueError, match="relative_center must be in"):
        mh.attention(q, k, v, relative_value=rv, relative_center=5)
