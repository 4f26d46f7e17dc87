"""Retention, linear attention that decays: https://arxiv.org/abs/2307.08621"""

import multihead as mh
from common import plain_scores, qkv, repeated

CAUSAL_ONLY = True


def inputs(rng, s):
    return {**qkv(rng, s), "log_decay": -rng.random((s.B, s.G, s.T)) / 4}


def variant(q, k, v, log_decay, causal):
    return mh.linear_attention(q, k, v, log_decay=log_decay)[0]


def plain(torch, q, k, v, log_decay, mask):
    passed = repeated(torch, log_decay.cumsum(2), q)
    decay = (passed[..., :, None] - passed[..., None, :]).masked_fill(~mask, -torch.inf).exp()
    return plain_scores(torch, q, k) * decay @ repeated(torch, v, q)
