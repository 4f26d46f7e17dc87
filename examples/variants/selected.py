"""Native sparse attention: compressed, selected and near keys, gated: https://arxiv.org/abs/2502.11089"""

import numpy as np

import multihead as mh
from common import plain_attention, plain_scores, qkv, repeated

BLOCK, CHOSEN, WINDOW = 8, 2, 16
CAUSAL_ONLY = True


def inputs(rng, s):
    return {**qkv(rng, s), "gates": rng.normal(size=(3, s.B, s.H, s.T, 1))}


def pooled(x):
    blocks = x.shape[2] // BLOCK
    means = mh.reshape(x[:, :, : blocks * BLOCK], (*x.shape[:2], blocks, BLOCK, x.shape[3]))
    return mh.scale(mh.sum(means, 3), 1 / BLOCK)


def chosen_blocks(most, T):
    """bool [B, H, T, blocks]: a query's own block and the most weighted compressed ones, -1 where there are fewer."""
    blocks, own = -(-T // BLOCK), np.arange(T) // BLOCK
    flags = np.zeros((*most.shape[:3], blocks + 1), bool)
    np.put_along_axis(flags, most, True, -1)
    return flags[..., :blocks] | (own[:, None] == np.arange(blocks))


def variant(q, k, v, gates, causal):
    seen = mh.mask_mod(lambda b, h, i, j, row: (j + 1) * BLOCK <= row + 1)  # whole blocks of the past
    capture = mh.AttentionCapture(weights=False, top_k=CHOSEN)
    far = mh.attention(q, pooled(k), pooled(v), mask=seen, capture=capture)
    flags = chosen_blocks(capture.top_keys.numpy(), q.shape[2])
    some = mh.attention(q, k, v, mask=mh.blocks(flags, 1, BLOCK) & mh.causal())
    near = mh.attention(q, k, v, mask=mh.window(WINDOW - 1, 0))
    gates = mh.sigmoid(gates)
    return gates[0] * far + gates[1] * some + gates[2] * near


def plain(torch, q, k, v, gates, mask):
    T, blocks = q.shape[2], q.shape[2] // BLOCK
    means = [x[:, :, : blocks * BLOCK].unflatten(2, (blocks, BLOCK)).mean(3) for x in (k, v)]
    at = torch.arange(T)
    whole = (torch.arange(blocks) + 1) * BLOCK <= at[:, None] + 1
    weights = torch.nan_to_num(plain_scores(torch, q, means[0], whole).softmax(-1)) if blocks else q[..., :0]
    far = weights @ repeated(torch, means[1], q)
    most = weights.topk(min(CHOSEN, blocks)).indices.masked_fill(weights.topk(min(CHOSEN, blocks)).values == 0, -1)
    flags = torch.tensor(chosen_blocks(most.numpy(), T)).repeat_interleave(BLOCK, 3)[..., :T]
    near = mask & (at[:, None] - at < WINDOW)
    gates = gates.sigmoid()
    some = plain_attention(torch, q, k, v, mask & flags)
    return gates[0] * far + gates[1] * some + gates[2] * plain_attention(torch, q, k, v, near)
