"""multihead.torch.flex_attention: score and mask functions against their definition under PyTorch's autograd."""

import pytest

torch = pytest.importorskip("torch")

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

torch.set_num_threads(1)


SLOPES = torch.tensor([0.1, 0.3, 0.5, 0.7])
TABLE = torch.randn(4, 65, generator=torch.Generator().manual_seed(9))
DOCUMENTS = torch.tensor([0] * 10 + [1] * 4 + [2] * 19)

SCORES = {
    "alibi": lambda s, b, h, q, k: s - SLOPES[h] * (q - k),
    "softcap": lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0),
    "relative table": lambda s, b, h, q, k: s + TABLE[h, q - k + 32],
    "composed": lambda s, b, h, q, k: 3 * torch.tanh((s - SLOPES[h] * (q - k).abs()) / 3) + TABLE[h, k],
    "where": lambda s, b, h, q, k: torch.where(q >= k, s, s * 0.5),
    "minus inf": lambda s, b, h, q, k: torch.where((q >= k) & (q - k < 9), s, -float("inf")),
    "functions": lambda s, b, h, q, k: torch.sigmoid(s) + torch.exp(-s.abs()) + s.clamp(-1.0, 1.0) ** 2,
    "min max": lambda s, b, h, q, k: torch.minimum(s, torch.maximum(s * s, s - 1.0)) + (k % 3) / (q // 4 + 1),
    "batch": lambda s, b, h, q, k: s * (1.0 + b) - torch.abs(s) * h,
    "polynomial": lambda s, b, h, q, k: s + 0.1 * s * s - 0.01 * s * s * s,
    # Tables read forwards, backwards, at every second element, by the query or the key alone, from the end.
    "tables": lambda s, b, h, q, k: s + TABLE[h, k - q + 32] * TABLE[b, 2 * k] + TABLE[3 - h, q] - TABLE[h, k],
    "from the end": lambda s, b, h, q, k: s + TABLE[h, k - 65] * TABLE[-1, q - 33],
    "both ends": lambda s, b, h, q, k: s * TABLE[h, q - k],
    "table of a table": lambda s, b, h, q, k: s + TABLE[h, DOCUMENTS[q] * 3 + DOCUMENTS[k]],
}


def composed(q, k, v, score_mod, mask_mod=None):
    """By the definition, with PyTorch's autograd."""
    b, h, tq, _ = q.shape
    at = torch.meshgrid(*(torch.arange(n) for n in (b, h, tq, k.shape[2])), indexing="ij")
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if score_mod is not None:
        s = score_mod(s, *at)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*at), -float("inf"))
    return torch.softmax(s, -1) @ v


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.float64, 2e-6)])
def test_score_functions_forward_and_backward(name, dtype, tolerance):
    q, k, v = (make((2, 4, 33, 16), dtype, seed=i) for i in range(3))
    grad = make((2, 4, 33, 16), dtype, grad=False, seed=4)
    mod = SCORES[name]
    out, want = mt.flex_attention(q, k, v, mod), composed(q, k, v, mod)
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(want, (q, k, v), grad)):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 5),
    "prefix": lambda b, h, q, k: (q >= k) | (k < 4),
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "per head": lambda b, h, q, k: (k <= q) & (k >= q - 4 * (h + 1)),
    "strided": lambda b, h, q, k: (q >= k) & ((q - k) % 3 == 0),
    "gap": lambda b, h, q, k: (k < 3) | ((q >= k) & (q - k < 5)),
    "batch and rest": lambda b, h, q, k: (q >= k) & (k >= b) & (DOCUMENTS[q] == DOCUMENTS[k]) & (k != 30 + h),
    "no keys": lambda b, h, q, k: (k < q) & (k >= 4 * b),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_functions(name):
    q, k, v = (make((2, 4, 33, 16), seed=i) for i in range(3))
    block_mask = mt.create_block_mask(MASKS[name], None, None, 33, 33)
    out = mt.flex_attention(q, k, v, SCORES["alibi"], block_mask)
    want = composed(q, k, v, SCORES["alibi"], MASKS[name]).nan_to_num(0.0)
    torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-5)
    a, b = torch.autograd.grad(out.square().sum(), q)[0], torch.autograd.grad(want.square().sum(), q)[0]
    torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-5)


def test_mask_functions_on_many_blocks():
    q, k, v = (make((1, 2, 700, 8), seed=i, grad=False) for i in range(3))
    ids = torch.arange(700) // 90
    mask = lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)
    out = mt.flex_attention(q, k, v, block_mask=mt.create_block_mask(mask))
    torch.testing.assert_close(out, composed(q, k, v, None, mask), atol=5e-6, rtol=0)


RUNS = {  # whether every query sees one run of keys; the size of a table that is long enough
    "documents": (lambda ids: lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), True, 300),
    "documents of a sample": (lambda ids: lambda b, h, q, k: ids[q] == ids[(b + 1) * k], True, 600),
    "prefix": (lambda ids: lambda b, h, q, k: (q >= k) | (k < 70 + b), True, 1),
    "first keys and window": (lambda ids: lambda b, h, q, k: (q >= k) & ((q - k < 9) | (k < 2)), False, 1),
    "by head": (lambda ids: lambda b, h, q, k: k // 64 == (q + h) // 64, False, 1),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("queries, keys", [(1, 129), (64, 64), (67, 191), (193, 130)])
def test_masks_become_runs_of_keys(name, queries, keys):
    make_mask, one_run, size = RUNS[name]
    mask_mod = make_mask(torch.arange(size) // 50)
    q, k, v = make((2, 3, queries, 8)), make((2, 3, keys, 8), seed=1), make((2, 3, keys, 8), seed=2)
    mask = mt.create_block_mask(mask_mod)
    said = mh.explain(q.detach(), k.detach(), v.detach(), mask=mask.mask)
    assert ("intervals of keys" in str(said)) == (one_run or (queries == 1 and name != "by head")), said
    out, want = mt.flex_attention(q, k, v, None, mask), composed(q, k, v, None, mask_mod).nan_to_num(0.0)
    torch.testing.assert_close(out, want, atol=5e-6, rtol=0)
    grad = make(out.shape, grad=False, seed=3)
    some = torch.isfinite(composed(q, k, v, None, mask_mod))
    ours = torch.autograd.grad((out * grad)[some].sum(), (q, k, v))
    for a, b in zip(ours, torch.autograd.grad((want * grad)[some].sum(), (q, k, v))):
        torch.testing.assert_close(a[b.isfinite()], b[b.isfinite()], atol=2e-5, rtol=0)


def test_an_index_outside_is_told_wherever_it_is():
    q = make((1, 4, 130, 8), grad=False)
    for size in (129, 130):
        ids, table = torch.arange(size) // 40, torch.randn(4, size)
        calls = [
            lambda: mt.flex_attention(q, q, q, None, mt.create_block_mask(lambda b, h, i, j: ids[i] == ids[j])),
            lambda: mt.flex_attention(q, q, q, lambda s, b, h, i, j: s + table[h, i]),
            lambda: mt.flex_attention(q, q, q, lambda s, b, h, i, j: s + table[h, 129 - j]),
        ]
        for call in calls:
            if size == 130:
                call()
            else:
                with pytest.raises(IndexError, match="outside"):
                    call()


FUSED = {  # what the library has built in, and what looks like it
    "alibi": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k), True),
    "alibi, other sign": (lambda s, b, h, q, k: SLOPES[h] * (k - q) + s, True),
    "one slope": (lambda s, b, h, q, k: s + (q - k) * -0.25, True),
    "distance": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k).abs(), False),
    "signed, no mask": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k), False),
    "softcap and alibi": (lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0) - SLOPES[h] * (q - k), True),
    "other cap": (lambda s, b, h, q, k: 5.0 * torch.tanh(s / 4.0), False),
    "reversed": (lambda s, b, h, q, k: SLOPES[h] * (q - k) - s, True),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("keys", [33, 20])
def test_functions_that_are_built_in_keep_their_meaning(name, keys):
    mod, is_causal = FUSED[name]
    q, k, v = make((2, 4, 33, 16)), make((2, 4, keys, 16), seed=1), make((2, 4, keys, 16), seed=2)
    mask = (lambda b, h, q, k: (q >= k) & (q - k < 9)) if is_causal else None
    out = mt.flex_attention(q, k, v, mod, mt.create_block_mask(mask) if mask else None)
    want = composed(q, k, v, mod, mask)
    some = torch.isfinite(want)
    torch.testing.assert_close(out[some], want[some], atol=2e-5, rtol=2e-5)
    a, b = torch.autograd.grad(out[some].sum(), q)[0], torch.autograd.grad(want[some].sum(), q)[0]
    torch.testing.assert_close(a[torch.isfinite(b)], b[torch.isfinite(b)], atol=5e-5, rtol=5e-5)


def test_pytorchs_block_mask_and_lse():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = (make((2, 4, 33, 16), seed=i, grad=False) for i in range(3))
    block_mask = flex.create_block_mask(MASKS["causal"], None, None, 33, 33, device="cpu")
    out, lse = mt.flex_attention(q, k, v, SCORES["softcap"], block_mask, return_lse=True)
    want, want_lse = flex.flex_attention(q, k, v, SCORES["softcap"], block_mask, return_lse=True)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse, want_lse, atol=5e-6, rtol=0)


def test_flex_refuses_what_it_cannot_do():
    q = make((1, 4, 5, 8), grad=False)
    learnt = torch.ones(4, requires_grad=True)
    cases = [
        (lambda s, b, h, q, k: s if q > k else -s, TypeError, "control flow"),
        (lambda s, b, h, q, k: torch.where(learnt[h], s, -s), TypeError, "condition"),
        (lambda s, b, h, q, k: s + SLOPES, TypeError, "indexed"),
        (lambda s, b, h, q, k: torch.fft.fft(s), TypeError, "cannot be traced"),
        (lambda s, b, h, q, k: s + SLOPES[q], IndexError, "outside"),
        (lambda s, b, h, q, k: torch.softmax(s, -1), TypeError, "softmax"),
    ]
    for mod, kind, text in cases:
        with pytest.raises(kind) as info:
            mt.flex_attention(q, q, q, mod)
        assert text in str(info.value)
    with pytest.raises(TypeError, match="condition"):
        mt.create_block_mask(lambda b, h, q, k: q * 1.0)
    with pytest.raises(TypeError, match="create_block_mask"):
        mt.flex_attention(q, q, q, block_mask=torch.ones(5, 5))
