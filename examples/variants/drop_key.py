"""DropKey and DropHead: random keys leave the softmax, random heads the output: https://arxiv.org/abs/2208.02646"""

import numpy as np

import multihead as mh
from common import plain_attention, qkv


def inputs(rng, s):
    kept = (rng.random((s.B, s.H, s.T, s.T)) < 0.8) | np.eye(s.T, dtype=bool)
    return {**qkv(rng, s), "kept": kept, "heads": rng.random((s.B, s.H, 1, 1)) < 0.7}


def variant(q, k, v, kept, heads, causal):
    mask = mh.keep(kept)
    return mh.where(heads, mh.attention(q, k, v, mask=mask & mh.causal() if causal else mask), 0.0)


def plain(torch, q, k, v, kept, heads, mask):
    return torch.where(heads, plain_attention(torch, q, k, v, mask & kept), 0)
