"""CoPE: positions that count gates, interpolated between learned ones: https://arxiv.org/abs/2405.18719"""

import multihead as mh
from common import allowed, plain_scores, qkv, repeated, scores, shared

COMPOSED = True  # of ops that hold every score
POSITIONS = 12


def inputs(rng, s):
    return {**qkv(rng, s), "table": rng.normal(size=(s.D, POSITIONS))}


def variant(q, k, v, table, causal):
    s, mask = scores(q, k), allowed(causal, q.shape[2])
    counted = mh.clamp(mh.cumsum(mh.where(mask, mh.sigmoid(s), 0.0), -1, reverse=True), high=POSITIONS - 1.0)
    below = mh.cast(counted.detach(), "int64")
    share, by_place = counted - mh.cast(below, s.dtype), mh.matmul(q, table)
    above = mh.take_along_axis(by_place, (below.numpy() + 1).clip(max=POSITIONS - 1), -1)
    s = s + share * above + (1.0 - share) * mh.take_along_axis(by_place, below, -1)
    return mh.matmul(mh.softmax(mh.where(mask, s, float("-inf"))), shared(v, q))


def plain(torch, q, k, v, table, mask):
    s = plain_scores(torch, q, k)
    counted = torch.where(mask, s.sigmoid(), 0).flip(-1).cumsum(-1).flip(-1).clamp(max=POSITIONS - 1)
    below, share, by_place = counted.floor().long(), counted - counted.floor(), q @ table
    above = by_place.gather(-1, (below + 1).clamp(max=POSITIONS - 1))
    s = s + share * above + (1 - share) * by_place.gather(-1, below)
    return s.masked_fill(~mask, -torch.inf).softmax(-1) @ repeated(torch, v, q)
