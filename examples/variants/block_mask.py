"""Blocks of keys chosen at run time for every head, as in MoBA and XAttention: https://arxiv.org/abs/2502.13189"""

import numpy as np

import multihead as mh
from common import plain_attention, qkv

BLOCK = 16


def inputs(rng, s):
    blocks = -(-s.T // BLOCK)
    chosen = rng.random((s.B, s.H, blocks, blocks)) < 0.4
    return {**qkv(rng, s), "chosen": chosen | np.eye(blocks, dtype=bool)}


def variant(q, k, v, chosen, causal):
    mask = mh.blocks(chosen, BLOCK, BLOCK)
    return mh.attention(q, k, v, mask=mask & mh.causal() if causal else mask)


def plain(torch, q, k, v, chosen, mask):
    seen = chosen.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, : q.shape[2], : k.shape[2]]
    return plain_attention(torch, q, k, v, mask & seen)
