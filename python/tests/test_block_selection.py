"""block_masses and top_blocks: what selections of key blocks are made of."""

import numpy as np
import pytest

import multihead as mh


def softmax(q, k, seen):
    s = q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(np.where(seen, s, -np.inf))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("query_block", [1, 4, 16])
def test_masses_are_sums_of_the_softmax_with_gradients(query_block):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4, 18, 8)), rng.standard_normal((2, 2, 21, 8))
    p = softmax(q, k, np.tril(np.ones((18, 21), bool), 3))
    want = np.stack([p[..., j : j + 8].sum(-1) for j in (0, 8, 16)], -1)
    want = np.stack([want[:, :, i : i + query_block].mean(2) for i in range(0, 18, query_block)], 2)
    got = mh.block_masses(q, k, 8, query_block=query_block, mask=mh.causal())
    assert np.abs(got.numpy() - want).max() < 1e-14
    mh.gradcheck(lambda q, k: mh.block_masses(q, k, 8, query_block=query_block, mask=mh.causal()), [q[:1, :, :5], k[:1]])


def test_top_blocks_are_flags_for_a_mask():
    scores = np.array([[3.0, 1.0, 3.0, np.nan], [-np.inf, -np.inf, 0.0, -np.inf]])
    assert mh.top_blocks(scores, 2).numpy().tolist() == [[True, False, True, False], [False, False, True, False]]
    always = np.array([False, False, False, True])
    assert mh.top_blocks(mh.tensor(scores), 1, always=always).numpy().tolist() == [[True, False, False, True],
                                                                                 [False, False, True, True]]  # fmt: skip
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, 2, 32, 8))
    flags = mh.top_blocks(mh.block_masses(q, q, 8, query_block=8), 4)
    assert flags.numpy().all()
    assert np.array_equal(mh.attention(q, q, q, mask=mh.blocks(flags, 8, 8)).numpy(), mh.attention(q, q, q).numpy())


def test_refusals():
    x = np.ones((1, 1, 2, 3))
    with pytest.raises(ValueError, match="block_masses: block and query_block must be >= 1, got 0 and 1"):
        mh.block_masses(x, x, 0)
    with pytest.raises(ValueError, match="top_blocks: count must be >= 0, got -1"):
        mh.top_blocks(x, -1)


def gradients(arrays, mask):
    leaves = [mh.tensor(x, requires_grad=True) for x in arrays]
    with mh.Tape() as tape:
        y = mh.attention(*leaves, mask=mask)
        tape.backward(mh.sum(y * mh.tensor(np.cos(np.arange(y.shape[2], dtype=arrays[0].dtype))[:, None])))
    return [x.grad.numpy() for x in leaves]


@pytest.mark.parametrize("size", [16, 32])
def test_gradients_under_narrow_blocks(size):
    """Those of dense flags; the same bits for threads and for a sample alone, whatever the other one sees."""
    rng = np.random.default_rng(size)
    T = 150 if size == 16 else 320
    arrays = [rng.standard_normal((2, heads, T, 24)).astype("f4") for heads in (4, 2, 2)]
    blocks = -(-T // size)
    flags = rng.random((2, 4, blocks, blocks)) < np.array([0.15, 0.9])[:, None, None, None]
    flags |= np.eye(blocks, dtype=bool)
    dense = flags.repeat(size, 2).repeat(size, 3)[:, :, :T, :T]
    got = gradients(arrays, mh.blocks(flags, size, size) & mh.causal())
    for x, want in zip(got, gradients([x.astype("f8") for x in arrays], mh.keep(dense) & mh.causal())):
        assert np.abs(x - want).max() < 5e-6 * np.abs(want).max()
    threads = mh.num_threads()
    for count in (1, 3):
        mh.set_num_threads(count)
        for b in range(2):
            alone = gradients([x[b : b + 1] for x in arrays], mh.blocks(flags[b : b + 1], size, size) & mh.causal())
            assert all(np.array_equal(x[b : b + 1], one) for x, one in zip(got, alone))
    mh.set_num_threads(threads)
