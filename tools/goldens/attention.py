"""Values and gradients of PyTorch's attention in f64, as a C++ table.

    python tools/goldens/attention.py > multihead/ops/attention/goldens.inc

Inputs are not stored: element n of tensor number s is sin(0.7 n + s), in C++ and here.
"""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

torch.set_default_dtype(torch.float64)
B, H, HKV, TQ, TK, D, DV = 2, 4, 2, 3, 5, 4, 3


def tensor(number, *shape):
    count = math.prod(shape)
    return torch.tensor([math.sin(0.7 * n + number) for n in range(count)]).reshape(shape)


def composed(q, k, v, bias=None, softcap=0.0, slopes=None, table=None, numbers=None):
    """Written out, for what scaled_dot_product_attention cannot do."""
    k, v = (x.repeat_interleave(H // HKV, dim=1) for x in (k, v))
    i, j = torch.arange(TQ)[:, None], torch.arange(TK)[None, :]
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    if table is not None:  # a vector and a number per distance, clipped at the ends
        row = (j - i - (TK - TQ) + (table.shape[1] - 1) // 2).clamp(0, table.shape[1] - 1)
        scores = scores + torch.einsum("bhid,hijd->bhij", q, table[:, row]) / math.sqrt(D) + numbers[:, row]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (i + TK - TQ - j).abs()
    return scores.softmax(-1) @ v


KEEP = torch.tensor([[True, False, True, True, False], [False, True, True, False, True], [True] * 5])
BIAS = tensor(5, H, TQ, TK)
CASES = {
    "plain": lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
    "scale": lambda q, k, v: sdpa(q, k, v, enable_gqa=True, scale=0.3),
    "causal_start": lambda q, k, v: sdpa(q, k, v, enable_gqa=True, is_causal=True),
    "keep": lambda q, k, v: sdpa(q, k, v, attn_mask=KEEP, enable_gqa=True),
    "bias": lambda q, k, v: sdpa(q, k, v, attn_mask=BIAS, enable_gqa=True),
    "softcap": lambda q, k, v: composed(q, k, v, softcap=0.5),
    "relative_key": lambda q, k, v: composed(q, k, v, table=tensor(6, H, 10, D), numbers=tensor(7, H, 10)),
    "alibi": lambda q, k, v: composed(q, k, v, slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625])),
}


def numbers(x):
    return "{" + ", ".join(repr(float(n)) for n in x.flatten()) + "}"


print(f"// Made by tools/goldens/attention.py with PyTorch {torch.__version__.split('+')[0]}; do not edit.")
for name, attention in CASES.items():
    q, k, v = (tensor(s, *shape).requires_grad_() for s, shape in
               ((1, (B, H, TQ, D)), (2, (B, HKV, TK, D)), (3, (B, HKV, TK, DV))))
    out = attention(q, k, v)
    (out * tensor(4, B, H, TQ, DV)).sum().backward()
    parts = ",\n ".join(numbers(x) for x in (out.detach(), q.grad, k.grad, v.grad))
    print(f'{{"{name}",\n {parts}}},')
