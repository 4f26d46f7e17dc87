#include "multihead/nn/attention/latent_attention.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace {

constexpr NormOptions kNorm = {.kind = NormKind::rms, .eps = 1e-6};

}  // namespace

int64_t matrix_weights(const MultiHeadAttentionOptions& o, const LatentOptions& latent) {
  const int64_t queries = checked_multiply(o.num_heads, o.head_dim, "config"),
                values = checked_multiply(o.num_heads, o.value_head_dim, "config"),
                keys = queries - o.num_heads * latent.rotary_dim;
  int64_t total = checked_multiply(latent.query_dim > 0 ? latent.query_dim : queries, o.embed_dim, "config");
  total += checked_multiply(latent.query_dim, queries, "config");
  total += checked_multiply(latent.dim + latent.rotary_dim + values, o.embed_dim, "config");
  return total + checked_multiply(keys + values, latent.dim, "config");
}

LatentAttention::LatentAttention(const MultiHeadAttentionOptions& o, const LatentOptions& latent, Rng& rng)
    : heads_(o.num_heads), head_dim_(o.head_dim), value_dim_(o.value_head_dim), latent_(latent) {
  const LinearOptions down = {.bias = o.key_bias}, none = {.bias = false};
  if (latent.query_dim > 0) {
    q_down = Linear(o.embed_dim, latent.query_dim, rng, down);
    q_norm = Norm(latent.query_dim, kNorm);
  }
  q_proj = Linear(latent.query_dim > 0 ? latent.query_dim : o.embed_dim, heads_ * head_dim_, rng, none);
  kv_down = Linear(o.embed_dim, latent.dim + latent.rotary_dim, rng, down);
  kv_norm = Norm(latent.dim, kNorm);
  kv_up = Linear(latent.dim, heads_ * (plain_dim() + value_dim_), rng, none);
  out_proj = Linear(heads_ * value_dim_, o.embed_dim, rng, {.bias = o.out_bias});
}

Tensor LatentAttention::operator()(const Tensor& x, OwnAttentionCall& call) const {
  MH_CHECK(call.rotary() != nullptr, ValueError, "latent attention: the model has no rotary positions");
  const int64_t batch = x.size(0), length = x.size(1), plain = plain_dim();
  const auto heads_of = [&](const Tensor& y, int64_t heads) {
    return reshape(y, {batch, length, heads, y.size(2) / heads});
  };
  const Tensor narrow = latent_.query_dim > 0 ? q_norm(q_down(x)) : x;
  const std::vector<Tensor> q = split(heads_of(q_proj(narrow), heads_), {plain, latent_.rotary_dim}, 3),
                            kv = split(heads_of(kv_down(x), 1), {latent_.dim, latent_.rotary_dim}, 3);
  const Tensor key = concat({kv_norm(kv[0]), rotary(kv[1], *call.rotary())}, 3);
  const Tensor cached = call.grown("latent", transpose(key, 1, 2));
  const std::vector<Tensor> up =
      split(reshape(kv_up.weight, {heads_, plain + value_dim_, latent_.dim}), {plain, value_dim_}, 1);
  const Tensor query =
      concat({matmul(transpose(q[0], 1, 2), up[0]), transpose(rotary(q[1], *call.rotary()), 1, 2)}, 3);
  AttentionOptions options = call.options();
  if (!options.scale) options.scale = 1 / std::sqrt(static_cast<double>(head_dim_));
  const Tensor mixed = attention(query, cached, slice(cached, 3, 0, latent_.dim), options);
  const Tensor heads = matmul(mixed, transpose(up[1], 1, 2));
  return out_proj(reshape(transpose(heads, 1, 2), {batch, length, heads_ * value_dim_}));
}

void LatentAttention::visit(Visitor& visitor) {
  if (latent_.query_dim > 0) {
    visitor("q_down", q_down);
    visitor("q_norm", q_norm);
  }
  visitor("q_proj", q_proj);
  visitor("kv_down", kv_down);
  visitor("kv_norm", kv_norm);
  visitor("kv_up", kv_up);
  visitor("out_proj", out_proj);
}

std::vector<OwnCacheSpec> LatentAttention::caches() const {
  return {{"latent", 1, latent_.dim + latent_.rotary_dim}};
}

}  // namespace multihead::nn
