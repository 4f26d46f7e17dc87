"""Captured tensors that learn: gradients against PyTorch's autograd, finite differences, thread counts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from torch._higher_order_ops.flex_attention import math_attention  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from test_torch_flex import composed  # noqa: E402
from torch_tensors import make  # noqa: E402

CASES = {  # (shapes of what learns, the score function of them, the same with gathers that PyTorch differentiates)
    "table by distance": ([(4, 66)], lambda w: lambda s, b, h, q, k: s + w[h, q - k + 33]),
    "table by key": ([(4, 40)], lambda w: lambda s, b, h, q, k: s * w[h, k]),
    "slopes": ([(4,)], lambda w: lambda s, b, h, q, k: s - w[h] * (q - k).abs()),
    "temperature": ([()], lambda w: lambda s, b, h, q, k: s * w),
    "by sample": ([(2, 33)], lambda w: lambda s, b, h, q, k: s + torch.tanh(w[b, q] * s)),
    "partial index": ([(4, 40)], lambda w: lambda s, b, h, q, k: s + w[h][q] * w[h][k],
                      lambda w: lambda s, b, h, q, k: s + w[h, q] * w[h, k]),
    "two tables": ([(4, 66), (8,)], lambda w, u: lambda s, b, h, q, k: s * u[b + h] + w[h, q - k + 33] * u[h]),
    "where": ([(40,)], lambda w: lambda s, b, h, q, k: torch.where(q > k, s + w[k], w[q])),
    "from the end": ([(67,)], lambda w: lambda s, b, h, q, k: s + w[q - k]),
    "scattered": ([(50,)], lambda w: lambda s, b, h, q, k: s + w[(7 * q + 3 * k) % 50]),
    "dot": ([(33, 3), (33, 3)], lambda w, u: lambda s, b, h, q, k: s + torch.dot(w[q], u[k]),
            lambda w, u: lambda s, b, h, q, k: s + sum(w[:, i][q] * u[:, i][k] for i in range(3))),
    "a view": ([(4, 3, 66)], lambda w: lambda s, b, h, q, k: s + w[:, 1][h, q - k + 33]),
    "only the table": ([(4, 66)], lambda w: lambda s, b, h, q, k: w[h, q - k + 33]),
}  # fmt: skip
MASKS = {"all": None, "causal": lambda b, h, q, k: q >= k, "gaps": lambda b, h, q, k: (q + k) % 3 > 0}


def learnt(shapes, dtype):
    g = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 5e-5), (torch.float64, 1e-10)])
def test_gradients_are_pytorchs(name, mask, dtype, tolerance):
    shapes, function, *same = CASES[name]
    x = [make((2, 4, 33, 16), dtype, seed=i) for i in range(3)]
    w = learnt(shapes, dtype)
    grad = make((2, 4, 33, 16), dtype, grad=False, seed=4)
    mask_mod = MASKS[mask] or flex.noop_mask
    out = mt.flex_attention(*x, function(*w), mt.create_block_mask(mask_mod))
    want = math_attention(*x, (same or [function])[0](*w), (mask_mod,), 0.25, {})[0]
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)
    ours = torch.autograd.grad(out, x + w, grad)
    theirs = torch.autograd.grad(want, x + w, grad, allow_unused=True)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lengths", [(1, 5), (130, 257), (64, 300), (300, 64)])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_gradients_over_many_blocks_and_shared_heads(lengths, heads):
    (tq, tk), (h, hk) = lengths, heads
    q, k, v = make((2, h, tq, 8)), make((2, hk, tk, 8), seed=1), make((2, hk, tk, 8), seed=2)
    w = torch.randn(h, tq + tk, generator=torch.Generator().manual_seed(3)).requires_grad_()
    mod = lambda s, b, h, i, j: s + w[h, i - j + tk - 1]
    out = mt.flex_attention(q, k, v, mod, enable_gqa=True)
    want = composed(q, k.repeat_interleave(h // hk, 1), v.repeat_interleave(h // hk, 1), mod)
    grad = make(out.shape, grad=False, seed=7)
    for a, b in zip(torch.autograd.grad(out, (q, k, v, w), grad), torch.autograd.grad(want, (q, k, v, w), grad)):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=1e-4)


def test_the_same_bits_for_any_number_of_threads():
    q, k, v = (make((2, 3, 700, 16), seed=i) for i in range(3))
    small, large = torch.randn(3, 1400).requires_grad_(), torch.randn(3, 700, 1001).requires_grad_()
    mods = [
        lambda s, b, h, i, j: s + small[h, i - j + 700],
        lambda s, b, h, i, j: s * small[h, i] + large[h, i, j],  # one copy of the sums
    ]
    threads = torch.get_num_threads()
    try:
        for mod, w in zip(mods, (small, large)):
            results = []
            for n in (1, 2, 3, 8):
                torch.set_num_threads(n)
                out = mt.flex_attention(q, k, v, mod, mt.create_block_mask(lambda b, h, i, j: i >= j))
                results.append(torch.autograd.grad(out.square().sum(), (q, k, v, w)))
            for other in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(results[0], other))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype):
    q, k, v = (make((1, 4, 40, 16), seed=i, grad=False).to(dtype) for i in range(3))
    w = torch.randn(4, 80, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
    mod = lambda s, b, h, i, j: s + w[h, i - j + 40]
    out = mt.flex_attention(q, k, v, mod)
    want = composed(q.float(), k.float(), v.float(), mod)
    (a,), (b,) = torch.autograd.grad(out.float().sum(), w), torch.autograd.grad(want.sum(), w)
    assert a.dtype == dtype
    torch.testing.assert_close(a.float(), b.float(), atol=0.1, rtol=0.1)


def test_only_what_wants_a_gradient_gets_one():
    q = make((1, 4, 33, 8), grad=False)
    w = torch.randn(4, requires_grad=True)
    mod = lambda s, b, h, i, j: s * w[h]
    out = mt.flex_attention(q, q, q, mod)  # neither query, key nor value
    (grad,) = torch.autograd.grad(out.square().sum(), w, retain_graph=True)
    assert grad.abs().max() > 0
    with torch.no_grad():
        assert not mt.flex_attention(q, q, q, mod).requires_grad
    mask = mt.create_block_mask(lambda b, h, i, j: w[h] * i >= w[h] * j)  # a condition has none
    assert not mt.flex_attention(q, q, q, None, mask).requires_grad
    with pytest.raises(RuntimeError, match="second derivative"):
        (grad,) = torch.autograd.grad(mt.flex_attention(q, q, q, mod).sum(), w, create_graph=True)
        grad.sum().backward()


def test_excluded_pairs_never_reach_a_table():
    q = make((1, 2, 40, 8), grad=False)
    poisoned = torch.randn(2, 40)
    poisoned[:, 30:] = float("nan")
    w = poisoned.requires_grad_()
    out = mt.flex_attention(q, q, q, lambda s, b, h, i, j: s * w[h, j], mt.create_block_mask(lambda b, h, i, j: j < 30))
    (grad,) = torch.autograd.grad(out.sum(), w)
    assert torch.isfinite(out).all() and torch.isfinite(grad).all() and (grad[:, 30:] == 0).all()


def test_training_a_relative_bias():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 24, 8) for _ in range(3))
    truth = torch.randn(4, 47)
    target = composed(q, k, v, lambda s, b, h, i, j: s + truth[h, i - j + 23])
    table = torch.nn.Parameter(torch.zeros(4, 47))
    optimizer = torch.optim.Adam([table], lr=0.1)
    for _ in range(60):
        loss = (mt.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j + 23]) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02


# --- without PyTorch -----------------------------------------------------------------------------------------


def loss_of(q, k, v, weight, table, dtype):
    mod = mh.score_mod(lambda s, b, h, i, j: s * 0.5 + np.tanh(table[h, i - j + 6]) * s)
    return mh.sum(mh.attention(q, k, v, mask=mh.causal(), score_mod=mod, softcap=3.0) * mh.tensor(weight))


def test_score_mod_of_a_tensor_that_learns_against_finite_differences():
    rng = np.random.default_rng(0)
    q, k, v = (mh.tensor(rng.standard_normal((1, 2, 7, 4))) for _ in range(3))
    weight = rng.standard_normal((1, 2, 7, 4))
    values = rng.standard_normal((2, 13))
    table = mh.tensor(values)
    table.requires_grad = True
    with mh.Tape() as tape:
        tape.backward(loss_of(q, k, v, weight, table, "f8"))
    grad = np.asarray(table.grad)
    for at in [(0, 6), (1, 7), (0, 12), (1, 0)]:
        ends = []
        for step in (1e-5, -1e-5):
            moved = values.copy()
            moved[at] += step
            ends.append(float(np.asarray(loss_of(q, k, v, weight, mh.tensor(moved), "f8"))))
        assert abs((ends[0] - ends[1]) / 2e-5 - grad[at]) < 1e-8


def test_a_tensor_that_learns_is_read_anew():
    q = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype("f4")
    slopes = mh.tensor(np.array([0.5, 1.0], "f4"))
    slopes.requires_grad = True
    mod = mh.score_mod(lambda s, b, h, i, j: s * slopes[h])
    before = np.asarray(mh.attention(q, q, q, score_mod=mod))
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.attention(q, q, q, score_mod=mod)))
    mh.optim.SGD([slopes], lr=10.0).step()
    after = np.asarray(mh.attention(q, q, q, score_mod=mod))
    fresh = np.asarray(mh.attention(q, q, q, score_mod=mh.score_mod(lambda s, b, h, i, j: s * slopes[h])))
    assert np.array_equal(after, fresh) and not np.array_equal(before, after)


def test_an_index_outside_is_told_by_attention_too():
    q = np.zeros((1, 2, 9, 4), "f4")
    ids = np.arange(5)
    with pytest.raises(IndexError, match="outside"):
        mh.attention(q, q, q, score_mod=mh.score_mod(lambda s, b, h, i, j: s + ids[i]))
    mask = mh.mask_mod(lambda b, h, i, j: ids[i] == ids[j])
    with pytest.raises(IndexError, match="outside"):
        mh.attention(q, q, q, mask=mask)
    mh.attention(q[:, :, :5], q[:, :, :5], q[:, :, :5], mask=mask)
