"""Stick-breaking attention: each key takes its share of what later keys left: https://arxiv.org/abs/2410.17980"""

import multihead as mh
from common import allowed, plain_scores, qkv, repeated, scores, shared

COMPOSED = True  # of ops that hold every score

inputs = qkv


def variant(q, k, v, causal):
    s, mask = scores(q, k), allowed(causal, q.shape[2])
    left = mh.where(mask, mh.log_sigmoid(-s), 0.0)
    later = mh.cumsum(left, -1, reverse=True) - left
    return mh.matmul(mh.where(mask, mh.exp(mh.log_sigmoid(s) + later), 0.0), shared(v, q))


def plain(torch, q, k, v, mask):
    s = plain_scores(torch, q, k)
    left = torch.where(mask, torch.nn.functional.logsigmoid(-s), 0)
    later = left.flip(-1).cumsum(-1).flip(-1) - left
    return torch.where(mask, torch.exp(torch.nn.functional.logsigmoid(s) + later), 0) @ repeated(torch, v, q)
