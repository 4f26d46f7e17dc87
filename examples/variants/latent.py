"""Multi-head latent attention with decoupled rotary keys, here given rotated: https://arxiv.org/abs/2405.04434"""

import multihead as mh
from common import plain_attention


def inputs(rng, s):
    latent, rotated = 2 * s.D, max(s.D // 2, 2)
    return {"q": rng.normal(size=(s.B, s.H, s.T, s.D)), "q_rotated": rng.normal(size=(s.B, s.H, s.T, rotated)),
            "latent": rng.normal(size=(s.B, s.T, latent)), "k_rotated": rng.normal(size=(s.B, 1, s.T, rotated)),
            "up": rng.normal(size=(2 * s.H * s.D, latent)) / latent**0.5}  # fmt: skip


def variant(q, q_rotated, latent, k_rotated, up, causal):
    B, H, T, D = q.shape
    k, v = mh.split(mh.permute(mh.reshape(mh.linear(latent, up), (B, T, H, 2 * D)), (0, 2, 1, 3)), [D, D], 3)
    k = mh.concat([k, mh.expand(k_rotated, (B, H, T, k_rotated.shape[3]))], 3)
    return mh.attention(mh.concat([q, q_rotated], 3), k, v, mask=mh.causal() if causal else None)


def plain(torch, q, q_rotated, latent, k_rotated, up, mask):
    B, H, T, D = q.shape
    k, v = (latent @ up.T).reshape(B, T, H, 2 * D).transpose(1, 2).split(D, 3)
    k = torch.cat([k, k_rotated.expand(B, H, T, -1)], 3)
    return plain_attention(torch, torch.cat([q, q_rotated], 3), k, v, mask)
