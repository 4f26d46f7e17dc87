"""Multi-head latent attention with a decoupled rotary key: all heads share the cache: https://arxiv.org/abs/2405.04434"""

import multihead as mh


class Latent(mh.nn.Attention):
    RANK = 64

    def __init__(self, sizes, rng):
        self.sizes, heads, dim = sizes, sizes.num_heads, sizes.head_dim
        self.query = mh.nn.Linear(sizes.embed_dim, 2 * heads * dim, bias=sizes.bias, rng=rng)
        self.down = mh.nn.Linear(sizes.embed_dim, self.RANK + dim, bias=sizes.bias, rng=rng)
        self.norm = mh.nn.RMSNorm(self.RANK)
        self.up = mh.nn.Linear(self.RANK, 2 * heads * dim, bias=False, rng=rng)
        self.out_proj = mh.nn.Linear(heads * dim, sizes.embed_dim, bias=sizes.out_bias, rng=rng)

    def caches(self):
        return {"latent": (1, self.RANK + self.sizes.head_dim)}

    def __call__(self, x, call):
        (batch, length, _), heads, dim = x.shape, self.sizes.num_heads, self.sizes.head_dim
        q = mh.reshape(self.query(x), (batch, length, heads, 2 * dim))
        latent, key = mh.split(mh.reshape(self.down(x), (batch, length, 1, -1)), [self.RANK, dim], 3)
        plain, turned = mh.split(q, [dim, dim], 3)
        turned, key = mh.rotary(turned, call.rotary), mh.rotary(key, call.rotary)
        cached = call.grown("latent", mh.transpose(mh.concat([self.norm(latent), key], 3), 1, 2))
        # The keys' and values' projections move to the queries and the output, so that none is ever made.
        to_key, to_value = mh.split(mh.reshape(self.up.weight, (heads, 2 * dim, self.RANK)), [dim, dim], 1)
        q = mh.concat([mh.matmul(mh.transpose(plain, 1, 2), to_key), mh.transpose(turned, 1, 2)], 3)
        options = call.options | {"scale": (2 * dim) ** -0.5}
        heads = mh.attention(q, cached, cached[..., : self.RANK], **options)
        return self.merge(mh.matmul(heads, mh.transpose(to_value, 1, 2)))
