"""Talking heads: scores and weights mixed over the heads: https://arxiv.org/abs/2003.02436"""

import multihead as mh
from common import plain_scores, qkv, repeated


def inputs(rng, s):
    return {**qkv(rng, s), "before": rng.normal(size=(s.H, s.H)), "after": rng.normal(size=(s.H, s.H))}


def mixed(x, weights):
    B, H, T, S = x.shape
    return mh.reshape(mh.matmul(weights, mh.reshape(x, (B, H, T * S))), (B, H, T, S))


def weights(rows, before, after):
    s = mixed(mh.where(rows.seen, rows.scores, 0.0), before)
    return mixed(mh.softmax(mh.where(rows.seen, s, float("-inf"))), after)


def variant(q, k, v, before, after, causal):
    return mh.attention_rows(q, k, v, weights, inputs=[before, after], mask=mh.causal() if causal else None)


def plain(torch, q, k, v, before, after, mask):
    s = torch.einsum("gh,bhij->bgij", before, plain_scores(torch, q, k)).masked_fill(~mask, -torch.inf)
    return torch.einsum("gh,bhij->bgij", after, s.softmax(-1)) @ repeated(torch, v, q)
