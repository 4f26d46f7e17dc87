#include "multihead/nn/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/attention/disentangled-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/attention/int8.h"
#include "multihead/ops/attention/masks/standing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace {

using detail::point;

const detail::PointAxes kHeads = {.heads = 2};  // of [B, T, H, D]

MultiHeadAttentionOptions resolved(MultiHeadAttentionOptions o) {
  MH_CHECK(o.embed_dim > 0 && o.num_heads > 0, ValueError,
           "MultiHeadAttention: embed_dim and num_heads must be positive, got ", o.embed_dim, " and ",
           o.num_heads);
  if (o.head_dim == 0) {
    MH_CHECK(o.embed_dim % o.num_heads == 0, ValueError, "MultiHeadAttention: embed_dim ", o.embed_dim,
             " is not divisible by num_heads ", o.num_heads, "; choose other sizes or give head_dim");
    o.head_dim = o.embed_dim / o.num_heads;
  }
  const auto default_to = [](int64_t& field, int64_t value) { field = field == 0 ? value : field; };
  default_to(o.num_kv_heads, o.num_heads);
  default_to(o.value_head_dim, o.head_dim);
  default_to(o.query_dim, o.embed_dim);
  default_to(o.key_dim, o.embed_dim);
  default_to(o.value_dim, o.embed_dim);
  MH_CHECK(o.num_kv_heads > 0 && o.num_heads % o.num_kv_heads == 0, ValueError,
           "MultiHeadAttention: num_heads ", o.num_heads, " is not a multiple of num_kv_heads ",
           o.num_kv_heads);
  for (const int64_t size : {o.head_dim, o.value_head_dim, o.query_dim, o.key_dim, o.value_dim}) {
    MH_CHECK(size > 0, ValueError, "MultiHeadAttention: sizes must be positive, got ", size);
  }
  MH_CHECK(o.dropout_p >= 0 && o.dropout_p <= 1, ValueError,
           "MultiHeadAttention: dropout_p must be in [0, 1], got ", o.dropout_p);
  MH_CHECK(!o.scale || std::isfinite(*o.scale), ValueError, "MultiHeadAttention: scale must be finite, got ",
           o.scale.value_or(0));
  MH_CHECK(o.qk_norm || !o.qk_norm_joint, ValueError, "MultiHeadAttention: qk_norm_joint needs qk_norm");
  MH_CHECK(o.qk_norm_eps >= 0 && std::isfinite(o.qk_norm_eps), ValueError,
           "MultiHeadAttention: qk_norm_eps must be finite and not negative, got ", o.qk_norm_eps);
  MH_CHECK(o.qk_norm || o.qk_norm_eps == MultiHeadAttentionOptions().qk_norm_eps, ValueError,
           "MultiHeadAttention: qk_norm_eps needs qk_norm");
  return o;
}

bool is_packed(const MultiHeadAttentionOptions& o) {
  return o.query_dim == o.key_dim && o.key_dim == o.value_dim && o.query_bias == o.key_bias &&
         o.key_bias == o.value_bias;
}

// [B, T, heads * D] -> [B, T, heads, D]
Tensor split_heads(const Tensor& x, int64_t heads) {
  return reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads});
}

Tensor merge_heads(const Tensor& x) { return reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)}); }

// Cached keys [B, Hkv, capacity, D] as [B, length, Hkv, D], without a copy.
Tensor cached_tokens(const Tensor& cache, int64_t length) {
  const Shape& s = cache.strides();
  return cache.as_strided({cache.size(0), length, cache.size(1), cache.size(3)}, {s[0], s[2], s[1], s[3]});
}

// The output projection head by head, with the point between.
Tensor sum_of_results(const Linear& out_proj, const Tensor& z) {
  MH_CHECK(out_proj.weight.defined(), ValueError,
           "Points: result needs the f32 weights of the output projection, which are packed");
  const Tensor by_head = reshape(out_proj.weight, {out_proj.out_features(), z.size(2), z.size(3)});
  const Tensor products = matmul(transpose(z, 1, 2), permute(by_head, {1, 2, 0}));
  const Tensor out = sum(point("result", transpose(products, 1, 2), kHeads), 2);
  return out_proj.bias.defined() ? add(out, out_proj.bias) : out;
}

void check_input(const char* name, const Tensor& x, int64_t features) {
  MH_CHECK(x.rank() == 3 && x.size(2) == features, ShapeError, "MultiHeadAttention: ", name,
           " must be [B, T, ", features, "], got ", x.shape());
}

std::vector<int64_t> totals_of(const CacheUpdate& update) {
  std::vector<int64_t> totals;
  for (size_t b = 0; b < update.held.size(); ++b) totals.push_back(update.held[b] + update.counts[b]);
  return totals;
}

}  // namespace

Mask detail::mask_of(const CacheUpdate& update, const Mask& more) {
  const std::vector<int64_t> totals = totals_of(update);
  const Diagonal newest(Tensor::of<int64_t>({std::ssize(totals)}, update.held));
  Mask mask = multihead::detail::standing(newest) & more;
  mask &= update.window > 0 ? multihead::window(update.window - 1, 0, newest) : causal(newest);
  mask &= lengths(Tensor::of<int64_t>({std::ssize(totals)}, totals));
  return mask;
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionOptions& options, Rng& rng)
    : options_(resolved(options)) {
  const MultiHeadAttentionOptions& o = options_;
  if (is_packed(o)) {
    // Xavier over the whole matrix, as torch.nn.MultiheadAttention does.
    const int64_t rows = query_rows() + key_rows() + value_rows();
    in_proj_weight =
        uniform_parameter({rows, o.query_dim}, std::sqrt(6.0 / static_cast<double>(rows + o.query_dim)), rng);
    if (o.query_bias) in_proj_bias = constant_parameter({rows}, 0);
  } else {
    q_proj = Linear(o.query_dim, query_rows(), rng, {.bias = o.query_bias});
    k_proj = Linear(o.key_dim, key_rows(), rng, {.bias = o.key_bias});
    v_proj = Linear(o.value_dim, value_rows(), rng, {.bias = o.value_bias});
  }
  out_proj = Linear(o.num_heads * o.value_head_dim, o.embed_dim, rng, {.bias = o.out_bias});
  if (o.qk_norm) {
    const NormOptions norm = {.kind = o.qk_norm_kind, .eps = o.qk_norm_eps};
    q_norm = Norm(o.qk_norm_joint ? query_rows() : o.head_dim, norm);
    k_norm = Norm(o.qk_norm_joint ? key_rows() : o.head_dim, norm);
  }
}

void MultiHeadAttention::visit(Visitor& visitor) {
  const bool joint = is_joint();
  if (joint) visitor("in_proj_weight", in_proj_weight, in_proj_packed);
  visitor("in_proj_bias", in_proj_bias);
  if (!joint) {
    visitor("q_proj", q_proj);
    visitor("k_proj", k_proj);
    visitor("v_proj", v_proj);
  }
  visitor("out_proj", out_proj);
  if (options_.qk_norm) {
    visitor("q_norm", q_norm);
    visitor("k_norm", k_norm);
  }
}

Tensor MultiHeadAttention::project_all(const Tensor& x) const {
  return in_proj_packed.defined() ? in_proj_packed(x, in_proj_bias) : linear(x, in_proj_weight, in_proj_bias);
}

Tensor MultiHeadAttention::project_rows(const Tensor& x, int64_t begin, int64_t end) const {
  if (in_proj_packed.defined()) return slice(project_all(x), -1, begin, end);
  const Tensor bias = in_proj_bias.defined() ? slice(in_proj_bias, 0, begin, end) : Tensor();
  return linear(x, slice(in_proj_weight, 0, begin, end), bias);
}

Tensor MultiHeadAttention::project_queries(const Tensor& query) const {
  check_input("query", query, options_.query_dim);
  const Tensor heads = point(
      "q", split_heads(is_joint() ? project_rows(query, 0, query_rows()) : q_proj(query), options_.num_heads),
      kHeads);
  return options_.qk_norm ? normalized(q_norm, heads, "q_norm") : heads;
}

Tensor MultiHeadAttention::normalized(const Norm& norm, const Tensor& heads, std::string_view name) const {
  return options_.qk_norm_joint ? reshape(norm(merge_heads(heads), name), heads.shape()) : norm(heads, name);
}

MultiHeadAttention::Projected MultiHeadAttention::project_keys_and_values(const Tensor& key,
                                                                          const Tensor& value) const {
  check_input("key", key, options_.key_dim);
  check_input("value", value, options_.value_dim);
  MH_CHECK(key.size(0) == value.size(0) && key.size(1) == value.size(1), ShapeError,
           "MultiHeadAttention: key and value must agree in batch and length, got ", key.shape(), " and ",
           value.shape());
  const int64_t first = query_rows(), middle = first + key_rows(), last = middle + value_rows();
  Tensor k, v;
  if (!is_joint()) {
    k = k_proj(key);
    v = v_proj(value);
  } else if (key.is_same(value)) {
    const Tensor both = project_rows(key, first, last);
    k = slice(both, -1, 0, key_rows());
    v = slice(both, -1, key_rows(), key_rows() + value_rows());
  } else {
    k = project_rows(key, first, middle);
    v = project_rows(value, middle, last);
  }
  const Tensor heads = point("k", split_heads(k, options_.num_kv_heads), kHeads);
  return {{},
          options_.qk_norm ? normalized(k_norm, heads, "k_norm") : heads,
          point("v", split_heads(v, options_.num_kv_heads), kHeads)};
}

MultiHeadAttention::Projected MultiHeadAttention::project(const Tensor& query, const Tensor& key,
                                                          const Tensor& value,
                                                          const RotaryTable* table) const {
  Projected heads;
  if (query.is_same(key) && key.is_same(value) && heads_are_joint()) {
    check_input("query", query, options_.query_dim);
    const int64_t h = options_.num_heads, hkv = options_.num_kv_heads;
    Tensor all = split_heads(project_all(query), h + 2 * hkv);
    if (table != nullptr && !options_.qk_norm && !detail::looking()) {
      all = rotary(all, *table, h + hkv);
      table = nullptr;
    }
    heads = {point("q", slice(all, 2, 0, h), kHeads), point("k", slice(all, 2, h, h + hkv), kHeads),
             point("v", slice(all, 2, h + hkv, h + 2 * hkv), kHeads)};
    if (options_.qk_norm) {
      heads.query = normalized(q_norm, heads.query, "q_norm");
      heads.key = normalized(k_norm, heads.key, "k_norm");
    }
  } else {
    heads = project_keys_and_values(key, value);
    heads.query = project_queries(query);
  }
  MH_CHECK(heads.query.size(0) == heads.key.size(0), ShapeError,
           "MultiHeadAttention: query and key must agree in batch, got ", query.shape(), " and ",
           key.shape());
  if (table != nullptr) {
    heads.query = point("rot_q", rotary(heads.query, *table), kHeads);
    heads.key = point("rot_k", rotary(heads.key, *table), kHeads);
  }
  return heads;
}

AttentionOptions MultiHeadAttention::attention_options(const AttentionCall& call) const {
  MH_CHECK(call.dropout_p == 0 && call.layout == Layout::bhtd, ValueError,
           "MultiHeadAttention: dropout_p and layout are the module's, not a call's");
  MH_CHECK(!call.distances.defined(), ValueError,
           "MultiHeadAttention: distances need self-attention with cu_seqlens");
  AttentionOptions options = call;
  if (detail::looking()) options.mask &= detail::excluded();
  if (!options.scale) options.scale = options_.scale;
  if (options_.zero_attn) {
    MH_CHECK(!call.sinks.defined(), ValueError, "MultiHeadAttention: sinks and zero_attn exclude each other");
    options.sinks = Tensor::zeros({options_.num_heads}, out_proj.dtype());
  }
  options.dropout_p = options_.dropout_p;
  options.layout = Layout::bthd;
  return options;
}

Tensor MultiHeadAttention::attend_heads(const Projected& heads, const AttentionCall& call) const {
  return output(detail::attend(heads.query, heads.key, heads.value, attention_options(call), call.score_mod),
                call.residual);
}

Tensor MultiHeadAttention::output(const Tensor& heads, const Tensor& residual) const {
  const Tensor z = point("z", heads, kHeads);
  if (detail::wants("result")) {
    const Tensor out = sum_of_results(out_proj, z);
    // What is only kept changes no bit of the output.
    if (detail::is_edited("result")) return residual.defined() ? add(out, residual) : out;
  }
  return out_proj(merge_heads(z), {.residual = residual});
}

Tensor MultiHeadAttention::attend_ragged(const Projected& heads, const AttentionCall& call) const {
  AttentionOptions options = attention_options(call);
  options.layout = Layout::bhtd;  // does not apply
  const auto rows = [](const Tensor& x) { return reshape(x, {x.size(1), x.size(2), x.size(3)}); };
  const Tensor out = detail::attend_ragged(rows(heads.query), rows(heads.key), rows(heads.value),
                                           call.cu_seqlens, options, call.score_mod);
  return output(reshape(out, {1, out.size(0), out.size(1), out.size(2)}), call.residual);
}

// Each sequence has a bias of its own.
Tensor MultiHeadAttention::attend_disentangled(const Projected& heads, AttentionCall call) const {
  MH_CHECK(is_joint() && options_.num_kv_heads == options_.num_heads && !options_.qk_norm &&
               call.rotary == nullptr && !call.bias.defined(),
           ValueError,
           "MultiHeadAttention: distances need joint projections without norms, as many heads of "
           "keys as of queries, and no other positions or bias");
  const Tensor table = std::exchange(call.distances, Tensor());
  const Tensor both = project_rows(table, 0, 2 * query_rows());
  const auto vectors = [&](int64_t begin) {
    return reshape(slice(both, 1, begin, begin + query_rows()),
                   {both.size(0), options_.num_heads, options_.head_dim});
  };
  const Tensor query_vectors = vectors(0), key_vectors = vectors(query_rows());
  AttentionOptions options = attention_options(call);
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(options_.head_dim));
  const std::vector<int64_t> ends = call.cu_seqlens.to_vector<int64_t>();
  MH_CHECK(ends.size() == 2 || !(detail::wants("scores") || detail::wants("pattern")), ValueError,
           "Points: scores and pattern of disentangled attention are those of one sequence; got ",
           ends.size() - 1);
  std::vector<Tensor> parts;
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const auto part = [&](const Tensor& x) { return slice(x, 1, ends[s], ends[s + 1]); };
    const Tensor q = part(heads.query), k = part(heads.key);
    options.bias = detail::distance_scores(q, k, query_vectors, key_vectors, scale);
    parts.push_back(detail::attend(q, k, part(heads.value), options, call.score_mod));
  }
  return output(concat(parts, 1), call.residual);
}

Tensor MultiHeadAttention::attend_cached(const Projected& heads, const AttentionCall& call) const {
  const Dtype dtype = heads.query.dtype();
  if (heads.key.dtype() == dtype) return attend_heads(heads, call);
  if (heads.key.dtype() == kInt8Cache) {
    const Tensor query = heads.query.to(Dtype::f32);
    const AttentionOptions options = attention_options(call);
    // The same bits; points are open in f32 alone.
    const Tensor out = detail::looking()
                           ? detail::attend(query, from_int8_rows(heads.key), from_int8_rows(heads.value),
                                            options, call.score_mod)
                           : attention_int8(query, heads.key, heads.value, options, call.score_mod);
    return output(out.to(dtype), call.residual);
  }
  const Tensor out = detail::attend(heads.query.to(heads.key.dtype()), heads.key, heads.value,
                                    attention_options(call), call.score_mod);
  return output(out.to(dtype), call.residual);
}

Tensor MultiHeadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionCall& call) const {
  const bool self = query.is_same(key) && key.is_same(value);
  if (call.cu_seqlens.defined()) {
    MH_CHECK(self && query.size(0) == 1, ShapeError,
             "MultiHeadAttention: cu_seqlens needs self-attention in a batch of 1, got ", query.shape());
    const Projected heads = project(query, key, value, call.rotary);
    return call.distances.defined() ? attend_disentangled(heads, call) : attend_ragged(heads, call);
  }
  if (!self || !heads_are_joint() || options_.qk_norm || detail::looking()) {
    return attend_heads(project(query, key, value, call.rotary), call);
  }
  // One product for queries, keys and values, attended to where they lie.
  check_input("query", query, options_.query_dim);
  Tensor qkv = project_all(query);
  if (call.rotary != nullptr) {
    const Tensor heads = split_heads(qkv, options_.num_heads + 2 * options_.num_kv_heads);
    qkv = merge_heads(rotary(heads, *call.rotary, options_.num_heads + options_.num_kv_heads));
  }
  AttentionOptions options = attention_options(call);
  options.layout = Layout::bhtd;  // does not apply
  const Tensor out = attention_packed(
      qkv, {.num_heads = options_.num_heads, .num_kv_heads = options_.num_kv_heads}, options, call.score_mod);
  return out_proj(out, {.residual = call.residual});
}

Tensor MultiHeadAttention::decode(const Tensor& x, const CacheUpdate& update,
                                  const AttentionCall& call) const {
  MH_CHECK(update.cache != nullptr, ValueError, "MultiHeadAttention: decode needs a cache");
  MH_CHECK(update.window >= 0, ValueError, "MultiHeadAttention: window must not be negative, got ",
           update.window);
  const NoTape silent;
  const Projected heads = project(x, x, x, call.rotary);
  append(*update.cache, transpose(heads.key, 1, 2), transpose(heads.value, 1, 2), update.held, update.counts);
  const std::vector<int64_t> totals = totals_of(update);
  const int64_t longest = *std::max_element(totals.begin(), totals.end());
  AttentionCall masked = call;
  masked.mask = detail::mask_of(update, call.mask);
  return attend_cached(
      {heads.query, cached_tokens(update.cache->key, longest), cached_tokens(update.cache->value, longest)},
      masked);
}

KvCache MultiHeadAttention::project_memory(const Tensor& key, const Tensor& value) const {
  const Projected heads = project_keys_and_values(key, value);
  return {transpose(heads.key, 1, 2), transpose(heads.value, 1, 2)};
}

Tensor MultiHeadAttention::attend(const Tensor& query, const KvCache& memory,
                                  const AttentionCall& call) const {
  const int64_t rows = query.size(0), memory_rows = memory.key.size(0);
  MH_CHECK(rows == memory_rows || (memory_rows > 0 && rows % memory_rows == 0), ShapeError,
           "MultiHeadAttention: ", rows, " rows of queries cannot share a memory of ", memory_rows, " rows");
  const Projected heads = {project_queries(query), transpose(memory.key, 1, 2),
                           transpose(memory.value, 1, 2)};
  if (rows == memory_rows) return attend_cached(heads, call);
  // Rows that share a memory become queries of one sequence: its keys are read once.
  const Tensor q = reshape(heads.query, {memory_rows, rows / memory_rows * query.size(1), options_.num_heads,
                                         heads.query.size(3)});
  const Tensor out = attend_cached({q, heads.key, heads.value}, call);
  return reshape(out, {rows, query.size(1), out.size(2)});
}

}  // namespace multihead::nn
