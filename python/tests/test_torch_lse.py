"""The log-sum-exp of flex_attention is differentiable, as PyTorch's is."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
WIDE = lambda b, h, i, j: (i >= j) & (i - j < 40)
GAPS = lambda b, h, i, j: (i >= j) & (i != 3) & (i != 70)  # two rows see nothing
CASES = {
    "plain": {},
    "window": {"mask": WIDE},
    "empty rows": {"mask": GAPS},
    "grouped": {"heads": 6, "mask": WIDE},
    "score_mod": {"score_mod": lambda s, b, h, i, j: torch.tanh(s / 3) * 3 + 0.1 * (i - j)},
    "scale": {"scale": 0.7, "value_dim": 5},
    "one query": {"queries": 1},
}


def inputs(dtype, heads=2, queries=100, value_dim=16):
    shapes = [(2, heads, queries, 16), (2, 2, 130, 16), (2, 2, 130, value_dim)]
    return [make(shape, dtype, seed=i) for i, shape in enumerate(shapes)]


def exact(q, k, v, mask=None, score_mod=None, scale=None):
    """(out, lse) in f64 by their formulas."""
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q @ k.mT * (scale or q.size(-1) ** -0.5)
    h, i, j = (torch.arange(n) for n in scores.shape[1:])
    at = h[:, None, None], i[:, None], j
    if score_mod is not None:
        scores = score_mod(scores, 0, *at)
    if mask is not None:
        keep = mask(0, *at).expand(scores.shape[1:])
        scores = scores.masked_fill(~keep, -torch.inf)
        seen = keep.any(-1, keepdim=True)
        out = torch.where(seen, torch.softmax(torch.where(seen, scores, 0.0), -1), 0.0) @ v
        return out, torch.where(seen[..., 0], torch.logsumexp(torch.where(seen, scores, 0.0), -1), -torch.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


@pytest.mark.parametrize("used", ["both", "lse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_gradients_through_lse(case, dtype, used):
    options = dict(CASES[case])
    sizes = {name: options.pop(name) for name in ("heads", "queries", "value_dim") if name in options}
    x = inputs(dtype, **sizes)
    wide = [t.detach().double().requires_grad_() for t in x]
    want_out, want_lse = exact(*wide, **options)
    mask = options.pop("mask", None)
    block_mask = None if mask is None else mt.create_block_mask(mask)
    out, lse = mt.flex_attention(*x, block_mask=block_mask, enable_gqa=True, return_lse=True, **options)
    assert torch.equal(lse.isinf(), want_lse.isinf())
    weights = make(lse.shape, lse.dtype, grad=False, seed=7).masked_fill(lse.isinf(), torch.nan)
    pairs = [(lse, want_lse, weights)]
    if used == "both":
        pairs.append((out, want_out, make(out.shape, dtype, grad=False, seed=8)))
    ours = torch.autograd.grad([p[0] for p in pairs], x, [p[2] for p in pairs], allow_unused=True)
    theirs = torch.autograd.grad(
        [p[1] for p in pairs], wide, [p[2].double().nan_to_num() for p in pairs], allow_unused=True
    )
    precise = {torch.float64: 1e-12, torch.float32: 3e-6}.get(dtype, 2e-2 if dtype is torch.bfloat16 else 4e-3)
    for a, b in zip(ours, theirs):
        if b is None:  # lse does not know the values
            assert not a.any()
            continue
        torch.testing.assert_close(a.double(), b, atol=precise * float(b.abs().max()), rtol=precise)


def test_parts_merge_into_the_whole():
    q, k, v = x = [make((1, 2, 64, 16), seed=i) for i in range(3)]
    grad = make((1, 2, 64, 16), grad=False, seed=9)
    parts = [mt.flex_attention(q, k[:, :, at], v[:, :, at], return_lse=True) for at in (slice(0, 23), slice(23, 64))]
    weights = torch.softmax(torch.stack([lse for _, lse in parts]), 0)[..., None]
    merged = sum(w * out for w, (out, _) in zip(weights, parts))
    whole = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(merged, whole)
    for a, b in zip(torch.autograd.grad(merged, x, grad), torch.autograd.grad(whole, x, grad)):
        torch.testing.assert_close(a, b, atol=3e-6, rtol=1e-5)


def test_an_lse_changed_in_place_is_noticed():
    q, k, v = inputs(torch.float32)
    out, lse = mt.flex_attention(q, k, v, return_lse=True)
    with torch.no_grad():
        lse *= 1.4426950408889634
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()


def test_outputs_that_nobody_uses():
    q, k, v = inputs(torch.float32)
    out, lse = mt.flex_attention(q, k, v, return_lse=True)
    (a,) = torch.autograd.grad(out.sum(), q)
    (b,) = torch.autograd.grad(mt.flex_attention(q, k, v).sum(), q)
    assert torch.equal(a, b) and lse.requires_grad
