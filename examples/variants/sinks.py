"""A learned sink per head in the softmax's sum: https://arxiv.org/abs/2309.17453"""

import multihead as mh
from common import plain_scores, qkv, repeated


def inputs(rng, s):
    return {**qkv(rng, s), "sinks": rng.normal(size=s.H)}


def variant(q, k, v, sinks, causal):
    return mh.attention(q, k, v, mask=mh.causal() if causal else None, sinks=sinks)


def plain(torch, q, k, v, sinks, mask):
    s = plain_scores(torch, q, k, mask)
    s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
    return s.softmax(-1)[..., :-1] @ repeated(torch, v, q)
