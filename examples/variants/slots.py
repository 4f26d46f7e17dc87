"""Slot attention: queries compete for keys, then weights are averaged: https://arxiv.org/abs/2006.15055"""

import multihead as mh
from common import plain_scores, qkv, repeated, scores, shared

COMPOSED = True  # of ops that hold every score

FULL_ONLY = True
inputs = qkv


def variant(q, k, v, causal):
    p = mh.softmax(scores(q, k), axis=-2)
    return mh.matmul(p / mh.sum(p, -1, True), shared(v, q))


def plain(torch, q, k, v, mask):
    p = plain_scores(torch, q, k).softmax(-2)
    return p / p.sum(-1, keepdim=True) @ repeated(torch, v, q)
