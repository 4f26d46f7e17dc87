"""A sigmoid gate on the output: https://arxiv.org/abs/2505.06708"""

import multihead as mh
from common import plain_attention, qkv


def inputs(rng, s):
    return {**qkv(rng, s), "gate": rng.normal(size=(s.B, s.H, s.T, s.D))}


def variant(q, k, v, gate, causal):
    return mh.attention(q, k, v, mask=mh.causal() if causal else None) * mh.sigmoid(gate)


def plain(torch, q, k, v, gate, mask):
    return plain_attention(torch, q, k, v, mask) * torch.sigmoid(gate)
