"""Sparsemax, the nearest point of the simplex: https://arxiv.org/abs/1602.02068"""

import multihead as mh
from common import allowed, plain_scores, qkv, repeated, scores, shared

inputs = qkv


def variant(q, k, v, causal):
    s = mh.where(allowed(causal, q.shape[2]), scores(q, k), -1e4)
    ordered = mh.sort(s, descending=True)
    sums = mh.cumsum(ordered, -1) - 1.0
    place = mh.cast(mh.cumsum(mh.cast(mh.ones(ordered.shape), s.dtype), -1), s.dtype)
    count = mh.sum(mh.cast(mh.greater(ordered * place, sums), s.dtype), -1, True)
    threshold = mh.take_along_axis(sums, mh.cast(count, "int64").numpy() - 1, -1) / count
    return mh.matmul(mh.relu(s - threshold), shared(v, q))


def plain(torch, q, k, v, mask):
    s = plain_scores(torch, q, k).masked_fill(~mask, -1e4)
    ordered = s.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = (ordered * torch.arange(1, s.shape[-1] + 1) > sums).sum(-1, keepdim=True)
    return (s - sums.gather(-1, count - 1) / count).relu() @ repeated(torch, v, q)
