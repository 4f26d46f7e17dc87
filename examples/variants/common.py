"""What the variants share: PyTorch's part of a comparison, and random inputs."""

import multihead as mh


def plain_scores(torch, q, k, mask=None):
    """q kᵀ / sqrt(D), -inf outside of mask [T, T]; heads of queries share keys."""
    s = q @ repeated(torch, k, q).transpose(-1, -2) / q.shape[-1] ** 0.5
    return s if mask is None else s.masked_fill(~mask, -torch.inf)


def plain_attention(torch, q, k, v, mask=None, bias=0.0):
    return (plain_scores(torch, q, k, mask) + bias).softmax(-1) @ repeated(torch, v, q)


def repeated(torch, x, q):
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def shared(x, q):
    """x [B, Hkv, ...] with a head for each of q's."""
    heads, group = x.shape[1], q.shape[1] // x.shape[1]
    return x if group == 1 else x[:, [h // group for h in range(heads * group)]]


def qkv(rng, s):
    return {"q": rng.normal(size=(s.B, s.H, s.T, s.D)), "k": rng.normal(size=(s.B, s.G, s.T, s.D)),
            "v": rng.normal(size=(s.B, s.G, s.T, s.D))}  # fmt: skip
