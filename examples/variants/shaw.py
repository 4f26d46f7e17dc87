"""Keys and values that depend on the distance, clipped: https://arxiv.org/abs/1803.02155"""

import multihead as mh
from common import plain_scores, qkv, repeated

FARTHEST = 16


def inputs(rng, s):
    tables = {n: rng.normal(size=(1, 2 * FARTHEST + 1, s.D)) for n in ("key_table", "value_table")}
    return {**qkv(rng, s), **tables}


def variant(q, k, v, key_table, value_table, causal):
    mask = mh.causal() if causal else None
    return mh.attention(q, k, v, relative_key=key_table, relative_value=value_table, mask=mask)


def plain(torch, q, k, v, key_table, value_table, mask):
    at = torch.arange(q.shape[2])
    distance = (at - at[:, None]).clip(-FARTHEST, FARTHEST) + FARTHEST
    extra = torch.einsum("bhid,ijd->bhij", q, key_table[0][distance]) / q.shape[-1] ** 0.5
    p = (plain_scores(torch, q, k) + extra).masked_fill(~mask, -torch.inf).softmax(-1)
    return p @ repeated(torch, v, q) + torch.einsum("bhij,ijd->bhid", p, value_table[0][distance])
