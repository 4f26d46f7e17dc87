"""Differential attention, the difference of two softmaxes: https://arxiv.org/abs/2410.05258"""

import multihead as mh
from common import plain_attention, qkv


def inputs(rng, s):
    other = qkv(rng, s)
    return {**qkv(rng, s), "q2": other["q"], "k2": other["k"], "share": rng.random(s.H)}


def variant(q, k, v, q2, k2, share, causal):
    mask = mh.causal() if causal else None
    return mh.attention(q, k, v, mask=mask) - share[:, None, None] * mh.attention(q2, k2, v, mask=mask)


def plain(torch, q, k, v, q2, k2, share, mask):
    return plain_attention(torch, q, k, v, mask) - share[:, None, None] * plain_attention(torch, q2, k2, v, mask)
