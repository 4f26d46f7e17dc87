"""Sigmoid attention: weights sigmoid(s - ln T) without a sum: https://arxiv.org/abs/2409.04431"""

import math

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def variant(q, k, v, causal):
    shift = math.log(k.shape[2])
    weight = mh.score_mod(lambda s, b, h, i, j: (s - shift).sigmoid())
    return mh.attention(q, k, v, mask=mh.causal() if causal else None, normalise="none", weight=weight)


def plain(torch, q, k, v, mask):
    return torch.sigmoid(plain_scores(torch, q, k, mask) - math.log(k.shape[2])) @ repeated(torch, v, q)
