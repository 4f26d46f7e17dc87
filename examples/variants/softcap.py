"""Scores capped by tanh, here with a learned cap per head: https://arxiv.org/abs/2408.00118"""

import multihead as mh
from common import plain_scores, qkv, repeated


def inputs(rng, s):
    return {**qkv(rng, s), "cap": 1 + rng.random(s.H)}


def variant(q, k, v, cap, causal):
    score = mh.score_mod(lambda s, b, h, i, j: cap[h] * (s / cap[h]).tanh())
    return mh.attention(q, k, v, score_mod=score, mask=mh.causal() if causal else None)


def plain(torch, q, k, v, cap, mask):
    cap = cap[:, None, None]
    s = cap * torch.tanh(plain_scores(torch, q, k) / cap)
    return s.masked_fill(~mask, -torch.inf).softmax(-1) @ repeated(torch, v, q)
