"""Forgetting Transformer: scores fall by the gates between key and query: https://arxiv.org/abs/2503.02130"""

import multihead as mh
from common import plain_attention, qkv


def inputs(rng, s):
    return {**qkv(rng, s), "gate": rng.normal(size=(s.B, s.H, s.T)) + 2}


def variant(q, k, v, gate, causal):
    # The query's part of the sum is the same for all its keys, so the softmax drops it.
    passed = mh.cumsum(mh.log_sigmoid(gate), 2)
    return mh.attention(q, k, v, mask=mh.causal() if causal else None, bias=-passed[:, :, None, :])


def plain(torch, q, k, v, gate, mask):
    passed = torch.nn.functional.logsigmoid(gate).cumsum(2)
    return plain_attention(torch, q, k, v, mask, passed[..., :, None] - passed[..., None, :])
