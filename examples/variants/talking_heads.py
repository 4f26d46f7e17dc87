"""Talking heads: scores and weights mixed over the heads: https://arxiv.org/abs/2003.02436"""

import multihead as mh
from common import allowed, plain_scores, qkv, repeated, scores, shared

COMPOSED = True  # of ops that hold every score


def inputs(rng, s):
    return {**qkv(rng, s), "before": rng.normal(size=(s.H, s.H)), "after": rng.normal(size=(s.H, s.H))}


def mixed(x, weights):
    B, H, T, S = x.shape
    return mh.reshape(mh.matmul(weights, mh.reshape(x, (B, H, T * S))), (B, H, T, S))


def variant(q, k, v, before, after, causal):
    s = mixed(scores(q, k), before)
    p = mh.softmax(mh.where(allowed(causal, q.shape[2]), s, float("-inf")))
    return mh.matmul(mixed(p, after), shared(v, q))


def plain(torch, q, k, v, before, after, mask):
    s = torch.einsum("gh,bhij->bgij", before, plain_scores(torch, q, k)).masked_fill(~mask, -torch.inf)
    return torch.einsum("gh,bhij->bgij", after, s.softmax(-1)) @ repeated(torch, v, q)
