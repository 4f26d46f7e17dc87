"""The delta rule, which replaces what the state says of a key: https://arxiv.org/abs/2406.06484"""

import multihead as mh
from common import plain_scores, qkv, repeated

CAUSAL_ONLY = True


def inputs(rng, s):
    made = qkv(rng, s)
    return {**made, "k": made["k"] / s.D**0.5, "beta": rng.random((s.B, s.G, s.T))}


def variant(q, k, v, beta, causal):
    return mh.linear_attention(q, k, v, beta=beta, rule="delta")[0]


def plain(torch, q, k, v, beta, mask):
    seen = (beta[..., None] * (k @ k.transpose(-1, -2))).tril(-1) + torch.eye(q.shape[2], dtype=q.dtype)
    written = torch.linalg.solve_triangular(seen, beta[..., None] * v, upper=False, unitriangular=True)
    return plain_scores(torch, q, k).masked_fill(~mask, 0) @ repeated(torch, written, q)
