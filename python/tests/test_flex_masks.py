"""PyTorch's own mask functions and BlockMasks, lengths, return_aux."""

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import multihead.torch as mt  # noqa: E402
from test_torch_flex import composed  # noqa: E402
from torch_tensors import make  # noqa: E402

CAUSAL = lambda b, h, i, j: i >= j
WINDOW = lambda b, h, i, j: i - j <= 8
PADDING = torch.arange(64)[None] < torch.tensor([[50], [64]])
GATE = torch.tensor([[1, 0], [0, 1]]).bool()

MASKS = {
    "noop_mask": flex.noop_mask,
    "and_masks": flex.and_masks(CAUSAL, WINDOW),
    "or_masks": flex.or_masks(CAUSAL, lambda b, h, i, j: j < 4),
    "to(device)": lambda b, h, i, j: (i >= j).to(i.device) & (j >= 0),
    "in place": lambda b, h, i, j: (i >= j).__iand__(i - j <= 8),
    "padding": lambda b, h, i, j: PADDING[b, j],
    "partial index": lambda b, h, i, j: PADDING[b][j] & GATE[b][h],
    "any": lambda b, h, i, j: (torch.tensor([[0, 8], [4, 9]])[h] == (j // 4).unsqueeze(-1)).any(dim=-1),
    "all": lambda b, h, i, j: (torch.tensor([[0, 8], [4, 40]])[h] <= j).all(),
    "rows": lambda b, h, i, j: (j >= torch.tensor([[0, 8], [4, 40]])[h][0]) & (j < torch.tensor([[9, 60], [4, 40]])[h][1]),
    "a constant": lambda b, h, i, j: True,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_pytorch_takes(name):
    q, k, v = (make((2, 2, 64, 8), seed=i, grad=False) for i in range(3))
    mask = MASKS[name]
    if name == "a constant":
        want = composed(q, k, v, None, None)
    else:
        dense = flex.create_mask(mask, 2, 2, 64, 64, device="cpu")
        want = composed(q, k, v, None, lambda *_: dense).nan_to_num(0.0)
    out = mt.flex_attention(q, k, v, None, mt.create_block_mask(mask, 2, 2, 64, 64))
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)


def blocks(indices, counts, mask_mod=None, full=None, lengths=(256, 256)):
    extra = {} if full is None else {"full_kv_num_blocks": full[0], "full_kv_indices": full[1]}
    return flex.BlockMask.from_kv_blocks(
        torch.tensor([[counts]], dtype=torch.int32), torch.tensor([[indices]], dtype=torch.int32),
        BLOCK_SIZE=128, mask_mod=mask_mod, seq_lengths=lengths, **extra,
    )  # fmt: skip


def test_blocks_that_say_what_the_function_says_are_taken():
    q = make((1, 2, 256, 8), grad=False)
    same = lambda b, h, i, j: i // 128 == j // 128
    for block_mask, mask in [
        (blocks([[0, 1], [1, 0]], [1, 1], same), same),
        (blocks([[0, 1], [0, 1]], [1, 2], CAUSAL), CAUSAL),
        (flex.create_block_mask(CAUSAL, None, None, 256, 256, device="cpu"), CAUSAL),
        (flex.create_block_mask(same, 1, 2, 256, 256, device="cpu"), same),
    ]:
        for _ in range(2):  # the second call knows
            out = mt.flex_attention(q, q, q, block_mask=block_mask)
        torch.testing.assert_close(out, composed(q, q, q, None, mask), atol=2e-6, rtol=0)


def test_blocks_that_mean_more_than_the_function_are_refused():
    q = make((1, 2, 256, 8), grad=False)
    for block_mask in (
        blocks([[0, 1], [1, 0]], [1, 1], flex.noop_mask),
        blocks([[0, 1], [1, 0]], [1, 1], lambda b, h, i, j: j >= 0),
        blocks([[0, 1], [0, 1]], [0, 1], CAUSAL, (torch.tensor([[[1, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32))),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"block \(\d, \d\)"):
            mt.flex_attention(q, q, q, block_mask=block_mask)
    sliced = flex.create_block_mask(CAUSAL, None, None, 256, 256, device="cpu")[:, :, 0]
    with pytest.raises(RuntimeError, match="sliced"):
        mt.flex_attention(q[:, :, :128], q, q, block_mask=sliced)


def test_lengths_are_those_of_the_mask():
    q, short = make((1, 2, 256, 8), grad=False), make((1, 2, 32, 8), grad=False)
    for block_mask in (
        mt.create_block_mask(CAUSAL, None, None, 32, 32),
        flex.create_block_mask(CAUSAL, None, None, 32, 32, device="cpu"),
    ):
        mt.flex_attention(short, short, short, block_mask=block_mask)
        for x, y in ((q, q), (q, short), (short, q)):
            with pytest.raises(ValueError, match="LEN=32, got 256"):
                mt.flex_attention(x, y, y, block_mask=block_mask)
    mt.flex_attention(q, q, q, block_mask=mt.create_block_mask(CAUSAL))


def test_return_aux():
    q = make((1, 2, 40, 8), grad=False)
    out, lse = mt.flex_attention(q, q, q, return_lse=True)
    same, aux = mt.flex_attention(q, q, q, return_aux=flex.AuxRequest(lse=True))
    assert torch.equal(out, same) and torch.equal(lse, aux.lse) and aux.max_scores is None
    _, nothing = mt.flex_attention(q, q, q, return_aux=flex.AuxRequest())
    assert nothing.lse is None
    assert isinstance(mt.flex_attention(q, q, q, return_aux=None), torch.Tensor)
    with pytest.raises(ValueError, match="max_scores"):
        mt.flex_attention(q, q, q, return_aux=flex.AuxRequest(max_scores=True))
    with pytest.raises(ValueError, match="exclude"):
        mt.flex_attention(q, q, q, return_lse=True, return_aux=flex.AuxRequest(lse=True))


def test_functions_that_need_a_short_vector():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 2, 64, 8, generator=g), torch.randn(2, 1, 64, 8, generator=g)
    q = make((2, 2, 64, 8), grad=False)
    out = mt.flex_attention(q, q, q, lambda s, n, h, i, j: s + 0.3 * torch.dot(a[n, h, i], b[n, h // 2, j]))
    extra = a @ b.transpose(-1, -2)
    torch.testing.assert_close(out, composed(q, q, q, lambda s, *_: s + 0.3 * extra), atol=2e-6, rtol=1e-5)
    with pytest.raises(TypeError, match="number"):
        mt.flex_attention(q, q, q, lambda s, n, h, i, j: s + torch.randn(2, 9999)[h].sum())
