"""Softpick: relu(e^s - 1) over the sum of |e^s - 1|: https://arxiv.org/abs/2504.20966"""

import numpy as np

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def variant(q, k, v, causal):
    mask, T = mh.causal() if causal else None, k.shape[2]
    lse = mh.attention(q, k, v[..., :0], mask=mask, return_lse=True)[1]
    top = mh.relu(lse.detach())  # by which no exponential overflows

    def weight(s, b, h, i, j, row):
        return np.maximum((s - top[b, h, row]).exp() - (-top[b, h, row]).exp(), 0.0)

    out, kept = mh.attention(q, k, v, mask=mask, normalise="sum", weight=mh.score_mod(weight), return_lse=True)
    seen = mh.cast(mh.tensor(np.arange(1.0, T + 1) if causal else np.full(T, float(T))), q.dtype)
    signed = mh.exp(lse - top) - seen * mh.exp(-top)  # sum of w; that of |w| is 2 sum(max(w, 0)) - sum(w)
    return out * (kept / (2.0 * kept - signed))[..., None]


def plain(torch, q, k, v, mask):
    w = torch.where(mask, plain_scores(torch, q, k).exp() - 1, 0)
    return w.relu() / w.abs().sum(-1, keepdim=True) @ repeated(torch, v, q)
