"""Stick-breaking attention: each key takes its share of what later keys left: https://arxiv.org/abs/2410.17980"""

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def weights(rows):
    left = mh.log_sigmoid(-rows.scores)
    later = mh.cumsum(left, -1, reverse=True) - left
    return mh.exp(mh.log_sigmoid(rows.scores) + later)


def variant(q, k, v, causal):
    return mh.attention_rows(q, k, v, weights, mask=mh.causal() if causal else None)


def plain(torch, q, k, v, mask):
    s = plain_scores(torch, q, k)
    left = torch.where(mask, torch.nn.functional.logsigmoid(-s), 0)
    later = left.flip(-1).cumsum(-1).flip(-1) - left
    return torch.where(mask, torch.exp(torch.nn.functional.logsigmoid(s) + later), 0) @ repeated(torch, v, q)
