"""Sparsemax, the nearest point of the simplex: https://arxiv.org/abs/1602.02068"""

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def variant(q, k, v, causal):
    return mh.attention(q, k, v, normalise="sparsemax", mask=mh.causal() if causal else None)


def plain(torch, q, k, v, mask):
    s = plain_scores(torch, q, k).masked_fill(~mask, -1e4)
    ordered = s.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = (ordered * torch.arange(1, s.shape[-1] + 1) > sums).sum(-1, keepdim=True)
    return (s - sums.gather(-1, count - 1) / count).relu() @ repeated(torch, v, q)
