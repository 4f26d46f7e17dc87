"""Weights s², divided by their sum; polynomial attention: https://arxiv.org/abs/2310.01655"""

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def variant(q, k, v, causal):
    score = mh.score_mod(lambda s, b, h, i, j: (s * s).log())
    return mh.attention(q, k, v, score_mod=score, mask=mh.causal() if causal else None)


def plain(torch, q, k, v, mask):
    w = torch.where(mask, plain_scores(torch, q, k) ** 2, 0)
    return w / w.sum(-1, keepdim=True) @ repeated(torch, v, q)
