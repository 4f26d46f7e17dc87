"""The entropy of every row of weights, to regularise: https://arxiv.org/abs/2303.06296"""

import multihead as mh
from common import plain_scores, qkv, repeated

inputs = qkv


def variant(q, k, v, causal):
    mask = mh.causal() if causal else None
    out, lse = mh.attention(q, k, v, mask=mask, return_lse=True)
    mean_key = mh.attention(q, k, k, mask=mask)  # the mean score of a row is q · its mean key
    return out, lse - mh.scale(mh.sum(q * mean_key, -1), q.shape[-1] ** -0.5)


def plain(torch, q, k, v, mask):
    s = plain_scores(torch, q, k, mask)
    p = s.softmax(-1)
    return p @ repeated(torch, v, q), -(p * torch.where(mask, s.log_softmax(-1), 0)).sum(-1)
