"""DropKey and DropHead: random keys leave the softmax, random heads the output: https://arxiv.org/abs/2208.02646"""

import numpy as np

import multihead as mh
from common import plain_attention, qkv

STEP = 8  # of the training: other keys and heads at every one


def inputs(rng, s):
    return qkv(rng, s)


def variant(q, k, v, causal):
    kept = mh.mask_mod(lambda b, h, i, j: (mh.random(STEP, b, h, i, j) >= 0.2) | (i == j))
    out = mh.attention(q, k, v, mask=kept & mh.causal() if causal else kept)
    return mh.where(heads(q), out, 0.0)


def heads(q):
    """The heads that stay."""
    return mh.random(STEP + 10**6, *np.ogrid[: q.shape[0], : q.shape[1], :1, :1]).numpy() >= 0.3


def plain(torch, q, k, v, mask):
    at = np.ogrid[: q.shape[0], : q.shape[1], : q.shape[2], : k.shape[2]]
    kept = (mh.random(STEP, *at).numpy() >= 0.2) | (at[2] == at[3])
    return torch.where(torch.tensor(heads(q)), plain_attention(torch, q, k, v, mask & torch.tensor(kept)), 0)
