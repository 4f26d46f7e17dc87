"""A learned bias for every distance: https://arxiv.org/abs/1910.10683 (without buckets)"""

import multihead as mh
from common import plain_attention, qkv

FARTHEST = 20


def inputs(rng, s):
    return {**qkv(rng, s), "table": rng.normal(size=(s.H, 2 * FARTHEST + 1))}


def variant(q, k, v, table, causal):
    def score(s, b, h, i, j):
        return s + table[h, (i - j).clip(-FARTHEST, FARTHEST) + FARTHEST]

    return mh.attention(q, k, v, score_mod=mh.score_mod(score), mask=mh.causal() if causal else None)


def plain(torch, q, k, v, table, mask):
    at = torch.arange(q.shape[2])
    distance = (at[:, None] - at).clip(-FARTHEST, FARTHEST) + FARTHEST
    return plain_attention(torch, q, k, v, mask, table[:, distance])
