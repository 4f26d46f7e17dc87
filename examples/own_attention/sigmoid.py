"""Sigmoid attention: weights sigmoid(s + b) without a sum: https://arxiv.org/abs/2409.04431"""

import math

import numpy as np

import multihead as mh


class Sigmoid(mh.nn.Attention):
    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        self.shift = mh.tensor(np.full(sizes.num_heads, -math.log(64), np.float32), requires_grad=True)

    def attend(self, q, k, v, x, call):
        weight = mh.score_mod(lambda s, b, h, i, j: (s + self.shift[h]).sigmoid())
        return mh.attention(q, k, v, weight=weight, normalise="none", **call.options)
