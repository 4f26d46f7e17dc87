"""Softpick: relu(e^s - 1) over the sum of |e^s - 1|: https://arxiv.org/abs/2504.20966"""

import multihead as mh
from common import allowed, plain_scores, qkv, repeated, scores, shared

COMPOSED = True  # of ops that hold every score

inputs = qkv


def variant(q, k, v, causal):
    s = mh.where(allowed(causal, q.shape[2]), scores(q, k), 0.0)  # e^0 - 1: no weight
    top = mh.max(s.detach(), -1, True)
    w = mh.exp(s - top) - mh.exp(-top)
    return mh.matmul(mh.relu(w) / mh.sum(mh.abs(w), -1, True), shared(v, q))


def plain(torch, q, k, v, mask):
    w = torch.where(mask, plain_scores(torch, q, k).exp() - 1, 0)
    return w.relu() / w.abs().sum(-1, keepdim=True) @ repeated(torch, v, q)
