"""Scalable softmax: scores times a learned s ln(n), n the keys in sight: https://arxiv.org/abs/2501.19399"""

import numpy as np

import multihead as mh
from common import plain_scores, qkv, repeated


def inputs(rng, s):
    return {**qkv(rng, s), "factor": rng.random(s.H)}


def variant(q, k, v, factor, causal):
    T = k.shape[2]
    logs = np.log(np.arange(1, T + 1) if causal else np.full(T, T)).astype(q.numpy().dtype)
    return mh.attention(factor[:, None, None] * logs[:, None] * q, k, v, mask=mh.causal() if causal else None)


def plain(torch, q, k, v, factor, mask):
    s = plain_scores(torch, q, k) * factor[:, None, None] * mask.sum(-1, keepdim=True).to(q.dtype).log()
    return s.masked_fill(~mask, -torch.inf).softmax(-1) @ repeated(torch, v, q)
