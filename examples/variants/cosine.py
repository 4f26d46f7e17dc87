"""Cosines of queries and keys with a learned temperature per head: https://arxiv.org/abs/2010.04245"""

import multihead as mh
from common import plain_attention, qkv


def inputs(rng, s):
    return {**qkv(rng, s), "temperature": 1 + rng.random(s.H)}


def unit(x):
    return x / mh.sqrt(mh.sum(mh.square(x), -1, True))


def variant(q, k, v, temperature, causal):
    q = unit(q) * temperature[:, None, None]
    return mh.attention(q, unit(k), v, scale=1.0, mask=mh.causal() if causal else None)


def plain(torch, q, k, v, temperature, mask):
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    return plain_attention(torch, q * temperature[:, None, None] * q.shape[-1] ** 0.5, k, v, mask)
