"""CoPE: positions that count gates, interpolated between learned ones: https://arxiv.org/abs/2405.18719"""

import multihead as mh
from common import plain_scores, qkv, repeated

POSITIONS = 12


def inputs(rng, s):
    return {**qkv(rng, s), "table": rng.normal(size=(s.D, POSITIONS))}


def weights(rows, table):
    s, by_place = rows.scores, mh.matmul(rows.query, table)
    counted = mh.clamp(mh.cumsum(mh.sigmoid(s), -1, reverse=True), high=POSITIONS - 1.0)
    below = mh.cast(counted.detach(), "int64")
    share = counted - mh.cast(below, s.dtype)
    steps = mh.concat([by_place[..., 1:] - by_place[..., :-1], 0.0 * by_place[..., :1]], -1)
    return mh.softmax(s + mh.take_along_axis(by_place, below, -1) + share * mh.take_along_axis(steps, below, -1))


def variant(q, k, v, table, causal):
    return mh.attention_rows(q, k, v, weights, inputs=[table], mask=mh.causal() if causal else None)


def plain(torch, q, k, v, table, mask):
    s = plain_scores(torch, q, k)
    counted = torch.where(mask, s.sigmoid(), 0).flip(-1).cumsum(-1).flip(-1).clamp(max=POSITIONS - 1)
    below, share, by_place = counted.floor().long(), counted - counted.floor(), q @ table
    above = by_place.gather(-1, (below + 1).clamp(max=POSITIONS - 1))
    s = s + share * above + (1 - share) * by_place.gather(-1, below)
    return s.masked_fill(~mask, -torch.inf).softmax(-1) @ repeated(torch, v, q)
