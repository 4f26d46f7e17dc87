"""Slot attention: queries compete for keys, then weights are averaged: https://arxiv.org/abs/2006.15055"""

import multihead as mh
from common import plain_scores, qkv, repeated, shared

FULL_ONLY = True
inputs = qkv


def variant(q, k, v, causal):
    k = shared(k, q)
    _, shares = mh.attention(k, q, q[..., :0], return_lse=True)  # of each key, over the queries
    return mh.attention(q, k, shared(v, q), bias=-shares[:, :, None])


def plain(torch, q, k, v, mask):
    p = plain_scores(torch, q, k).softmax(-2)
    return p / p.sum(-1, keepdim=True) @ repeated(torch, v, q)
