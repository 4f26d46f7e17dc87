"""The Forgetting Transformer: scores fall by the gates between key and query: https://arxiv.org/abs/2503.02130"""

import multihead as mh


class Forgetting(mh.nn.Attention):
    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        self.gate = mh.nn.Linear(sizes.embed_dim, sizes.num_heads, rng=rng)

    def caches(self):
        return super().caches() | {"gates": (self.sizes.num_heads, 1)}

    def attend(self, q, k, v, x, call):
        gates = mh.transpose(mh.log_sigmoid(self.gate(x)), 1, 2)[..., None]
        # The query's part of the sum is the same for all its keys, so the softmax drops it.
        passed = mh.cumsum(call.grown("gates", gates), 2)
        return mh.attention(q, k, v, bias=-mh.transpose(passed, 2, 3), **call.options)
