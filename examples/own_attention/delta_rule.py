"""The delta rule, which replaces what a state of fixed size says of a key: https://arxiv.org/abs/2406.06484"""

import multihead as mh


def unit(x):
    return x / mh.sqrt(mh.sum(mh.square(x), -1, True) + 1e-2)


class DeltaRule(mh.nn.Attention):
    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        self.beta = mh.nn.Linear(sizes.embed_dim, sizes.num_kv_heads, rng=rng)
        self.norm = mh.nn.RMSNorm(sizes.head_dim)

    def caches(self):
        return {"state": (self.sizes.num_kv_heads, self.sizes.head_dim, self.sizes.head_dim)}

    def attend(self, q, k, v, x, call):
        beta = mh.transpose(mh.sigmoid(self.beta(x)), 1, 2)
        out, state = mh.linear_attention(
            unit(q), unit(k), v, beta=beta, rule="delta", state=call.carried("state"), lengths=call.counts
        )
        call.carry("state", state)
        return self.norm(out)
