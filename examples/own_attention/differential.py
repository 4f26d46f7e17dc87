"""Differential attention, the difference of two softmaxes: https://arxiv.org/abs/2410.05258"""

import numpy as np

import multihead as mh


class Differential(mh.nn.Attention):
    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        self.share = mh.tensor(np.full((sizes.num_heads // 2, 1, 1), 0.5, np.float32), requires_grad=True)
        self.norm = mh.nn.RMSNorm(2 * sizes.head_dim)

    def attend(self, q, k, v, x, call):
        # The first half of the heads sees, the second is subtracted; two heads' values are one twice as wide.
        half = self.sizes.num_heads // 2
        wide = mh.concat([v[:, :half], v[:, half:]], 3)
        seen = mh.attention(q[:, :half], k[:, :half], wide, **call.options)
        return self.norm(seen - self.share * mh.attention(q[:, half:], k[:, half:], wide, **call.options))
