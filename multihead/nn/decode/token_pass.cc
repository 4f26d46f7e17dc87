#include "multihead/nn/decode/token_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/kernels/attention/decode/token_attention.h"
#include "multihead/kernels/elementwise/accumulate.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/quantized/packed_linear.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/nn/arrangement-inl.h"
#include "multihead/nn/decode/own-inl.h"
#include "multihead/nn/points-inl.h"

namespace multihead::nn {
namespace {

const float* floats_of(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

// A weight that a kernel may read where it lies.
bool is_plain(const Tensor& x) {
  return !x.defined() || (x.dtype() == Dtype::f32 && x.size(-1) > 0 && x.strides()[-1] == 1);
}
bool is_plain(const Linear& x) { return is_plain(x.bias) && (x.packed.defined() || is_plain(x.weight)); }
bool is_plain(const Norm& x) { return is_plain(x.weight) && is_plain(x.bias); }

int64_t heads_width(const MultiHeadAttentionOptions& o) {
  return (o.num_heads + 2 * o.num_kv_heads) * o.head_dim;
}

// Appends `size` numbers of a head to the cache's token.
void append_head(const Tensor& cache, int64_t b, int64_t head, int64_t token, const float* from,
                 int64_t size) {
  const Shape& s = cache.strides();
  const int64_t at = b * s[0] + head * s[1] + token * s[2];
  if (cache.dtype() == Dtype::f32) {
    std::memcpy(cache.data<float>() + at, from, static_cast<size_t>(size) * sizeof(float));
  } else if (cache.dtype() == kInt8Cache) {
    kernels::quantize_int8_row(from, size, cache.data<int32_t>() + at);
  } else {
    BFloat16* to = cache.data<BFloat16>() + at;
    for (int64_t i = 0; i < size; ++i) to[i] = BFloat16(from[i]);
  }
}

}  // namespace

TokenPass::TokenPass(const Tensor& x, std::span<const int64_t> held, std::span<const int64_t> counts)
    : input_(x.contiguous()),
      held_(held),
      counts_(counts),
      batch_(x.size(0)),
      tokens_(x.size(1)),
      rows_(batch_ * tokens_),
      width_(x.size(2)),
      x_(input_.data<float>()) {
  for (size_t b = 0; b < held.size(); ++b) totals_.push_back(held[b] + counts[b]);
}

std::string TokenPass::declined(const Tensor& x) {
  if (x.dtype() != Dtype::f32) return concat("the stream is ", x.dtype());
  if (x.size(0) * x.size(1) > kMostRows) return concat(x.size(0) * x.size(1), " new tokens");
  if (Tape::current() != nullptr) return "a tape is recording";
  if (Autocast::active()) return "autocast";
  if (detail::looking()) return "named points";
  return {};
}

std::string TokenPass::declined(const TransformerLayer& layer, const LayerCall& call) const {
  const AttentionCall& a = call.attention;
  const MultiHeadAttention& self = layer.self_attn;
  const MultiHeadAttentionOptions& o = self.options();
  if (layer.own_attn.defined()) return "an own attention";
  if (call.rng != nullptr) return "dropout";
  static constexpr std::string_view kTaken[] = {"softcap", "alibi_slopes"};
  if (const char* other = multihead::detail::other_option(a, kTaken)) {
    return concat("attention with ", other);
  }
  if (a.score_mod) return "attention with score_mod";
  if (o.zero_attn) return "attention with zero_attn";
  if (o.qk_norm_joint) return "norms over all heads together";
  if (layer.options().cross_attention) return "cross-attention";
  const auto block = layer.options().block;
  const bool has_norm2 = block != Block::parallel_shared && block != Block::attention_only;
  if (!layer.norm1.weight.defined() || (has_norm2 && !layer.norm2.weight.defined())) return "no norms";
  const bool joint = self.in_proj_weight.defined() || self.in_proj_packed.defined();
  if (!joint || o.value_head_dim != o.head_dim) return "separate projections";
  const bool plain = is_plain(self.in_proj_weight) && is_plain(self.in_proj_bias) &&
                     is_plain(self.out_proj) && is_plain(layer.feed_forward.fc1) &&
                     is_plain(layer.feed_forward.fc2) && is_plain(layer.norm1) && is_plain(layer.norm2) &&
                     is_plain(layer.post_norm1) && is_plain(layer.post_norm2) && is_plain(self.q_norm) &&
                     is_plain(self.k_norm);
  if (!plain) return "weights that are not f32";
  const KvCache* cache = call.update.cache;
  if (cache == nullptr) return "no cache";
  const Dtype dtype = cache->key.dtype();
  const int64_t row = dtype == kInt8Cache ? kernels::int8_row_words(o.head_dim) : o.head_dim;
  const Shape expected = {batch_, o.num_kv_heads, cache->key.size(2), row};
  bool fits = held_.size() == static_cast<size_t>(batch_) && counts_.size() == held_.size() &&
              cache->key.shape() == expected && cache->value.shape() == expected &&
              cache->value.dtype() == dtype &&
              (dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == kInt8Cache);
  for (size_t b = 0; fits && b < totals_.size(); ++b) {
    fits = counts_[b] >= 0 && counts_[b] <= tokens_ && totals_[b] <= expected[2];
  }
  return fits ? "" : "another cache";
}

float* TokenPass::get(Rows& rows, int64_t width) {
  if (!rows.defined() || width > rows.size(1)) rows = Tensor::empty({rows_, width});
  return rows.data<float>();
}

// Rows that a sub-layer or a norm of x may write.
float* TokenPass::spare(const float* x) {
  float* normed = get(normed_, width_);
  return x == normed ? get(branch_, width_) : normed;
}

float* TokenPass::normalize(const Norm& norm, const float* x, const float* residual, float* sum) {
  const Tensor factors = norm.factors();
  float *moments = get(moments_, 2), *y = spare(x);
  kernels::norm(kernels::NormArgs<float>{.rows = rows_,
                                         .size = width_,
                                         .eps = norm.eps(),
                                         .x = x,
                                         .residual = residual,
                                         .sum = sum,
                                         .weight = floats_of(factors),
                                         .bias = floats_of(norm.bias),
                                         .y = y,
                                         .mean = norm.kind() == NormKind::layer ? moments : nullptr,
                                         .inv_std = moments + rows_});
  return y;
}

// The first `count` heads of every row, in place.
void TokenPass::normalize_heads(const Norm& norm, float* heads, int64_t count, int64_t stride) {
  const Tensor factors = norm.factors();
  for (int64_t row = 0; row < rows_; ++row) {
    float* x = heads + row * stride;
    kernels::norm(kernels::NormArgs<float>{.rows = count,
                                           .size = norm.weight.size(0),
                                           .eps = norm.eps(),
                                           .x = x,
                                           .weight = floats_of(factors),
                                           .y = x,
                                           .inv_std = get(moments_, count)});
  }
}

void TokenPass::multiply(const Matrix& m, const float* x, float* y, Activation activation,
                         const float* residual) const {
  if (m.packed.defined()) {
    kernels::packed_linear({.x = x,
                            .ldx = m.packed.in_features(),
                            .packed = m.packed.packed().raw(),
                            .dtype = m.packed.dtype(),
                            .y = y,
                            .ldy = m.packed.out_features(),
                            .rows = rows_,
                            .out = m.packed.out_features(),
                            .in = m.packed.in_features(),
                            .bias = floats_of(m.bias),
                            .activation = activation,
                            .residual = residual});
    return;
  }
  const int64_t out = m.weight.size(0), in = m.weight.size(1);
  kernels::gemm(kernels::GemmArgs<float>{.a = x,
                                         .lda = in,
                                         .b = m.weight.data<float>(),
                                         .ldb = m.weight.strides()[0],
                                         .tb = kernels::Transpose::yes,
                                         .c = y,
                                         .ldc = out,
                                         .m = rows_,
                                         .n = out,
                                         .k = in,
                                         .bias = floats_of(m.bias),
                                         .activation = activation,
                                         .residual = residual});
}

// Rotates queries and keys in place, and appends keys and values to the cache.
void TokenPass::rotate_and_append(const MultiHeadAttentionOptions& o, const LayerCall& call,
                                  float* heads) const {
  KvCache& cache = *call.update.cache;
  const RotaryTable* rotary = call.attention.rotary;
  make_own(cache.key);
  make_own(cache.value);
  const int64_t d = o.head_dim, queries = o.num_heads * d;
  for (int64_t row = 0; row < rows_; ++row, heads += heads_width(o)) {
    const int64_t b = row / tokens_, t = row % tokens_;
    if (rotary != nullptr) {
      const int64_t pairs = rotary->cos.size(2), at = (rotary->cos.size(0) == 1 ? t : row) * pairs;
      multihead::detail::rotate_in_place(heads, rotary->cos.data<float>() + at,
                                         rotary->sin.data<float>() + at,
                                         {o.num_heads + o.num_kv_heads, d, pairs, rotary->layout});
    }
    if (t >= counts_[static_cast<size_t>(b)]) continue;
    const int64_t token = held_[static_cast<size_t>(b)] + t;
    for (int64_t h = 0; h < o.num_kv_heads; ++h) {
      const float *key = heads + queries + h * d, *value = key + o.num_kv_heads * d;
      append_head(cache.key, b, h, token, key, d);
      append_head(cache.value, b, h, token, value, d);
    }
  }
}

void TokenPass::attend_to_cache(const MultiHeadAttentionOptions& o, const LayerCall& call, const float* heads,
                                float* out) {
  const KvCache& cache = *call.update.cache;
  const int64_t d = o.head_dim, width = heads_width(o), queries = o.num_heads * d, count = rows_ * queries;
  const auto operand = [](const Tensor& x) {
    const Shape& strides = x.strides();
    return kernels::Operand(x.raw(), x.dtype(), {strides[0], strides[1], strides[2]});
  };
  const kernels::Strides3 results{tokens_ * queries, d, queries};
  kernels::AttentionInput in{{heads, {tokens_ * width, d, width}}, operand(cache.key), operand(cache.value)};
  kernels::AttentionOutput to{{out, results}, {}};
  const bool narrow = cache.key.dtype() == Dtype::bf16;
  if (narrow) {
    narrow_.resize(static_cast<size_t>(2 * count));
    for (int64_t i = 0; i < count; ++i) narrow_[i] = BFloat16(heads[i / queries * width + i % queries]);
    in.query = {narrow_.data(), results};
    to.out = {narrow_.data() + count, results};
  }
  kernels::AttentionProblem p;
  p.batch = batch_, p.heads = o.num_heads, p.kv_heads = o.num_kv_heads;
  p.queries = tokens_, p.keys = *std::max_element(totals_.begin(), totals_.end());
  p.head_dim = p.value_dim = d;
  p.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(d)));
  p.causal = true;
  p.diagonal = held_[0], p.diagonals = batch_ > 1 ? held_.data() : nullptr;
  if (call.update.window > 0) p.window_left = call.update.window - 1;
  p.key_lengths = totals_.data();
  kernels::ScoreTerms terms;
  terms.softcap = call.attention.softcap;
  terms.alibi_slopes = floats_of(call.attention.alibi_slopes);
  kernels::attention_forward(p, terms, in, to);
  for (int64_t i = 0; narrow && i < count; ++i) out[i] = static_cast<float>(narrow_[count + i]);
}

// Self-attention keeps the keys and values of the new tokens first; they follow each row's queries.
void TokenPass::attend_to_lists(const MultiHeadAttentionOptions& o, const ListCall& call, bool cross,
                                const float* heads, float* out) {
  const int64_t size = o.num_heads * o.head_dim, stride = cross ? size : 3 * size,
                at = cross ? call.source_at : call.own_at;
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(o.head_dim)));
  const bool interleaved = kernels::token_attention_interleaves(o.num_heads, o.head_dim);
  for (int64_t row = 0, end; row < rows_; row = end) {
    const float* query = heads + row * stride;
    const int64_t list = cross ? call.source_of[static_cast<size_t>(row)] : row;
    end = row + 1;
    if (cross) {
      while (end < rows_ && call.source_of[static_cast<size_t>(end)] == list) ++end;
    } else {
      std::copy_n(query + size, 2 * size, call.added + row * call.added_width + at);
    }
    const TokenList& tokens = (cross ? call.source : call.own)[static_cast<size_t>(list)];
    const auto scratch = kernels::token_attention_scratch(std::ssize(tokens), interleaved);
    if (scratch > std::ssize(scores_)) scores_.resize(static_cast<size_t>(scratch));
    kernels::token_attention({.query = query,
                              .query_stride = stride,
                              .rows = end - row,
                              .tokens = tokens.data(),
                              .count = std::ssize(tokens),
                              .key_offset = at,
                              .value_offset = at + size,
                              .heads = o.num_heads,
                              .head_dim = o.head_dim,
                              .scale = static_cast<float>(scale),
                              .bias = cross ? nullptr : call.bias,
                              .out = out + row * size,
                              .out_stride = size,
                              .scratch = scores_.data(),
                              .interleaved = interleaved});
  }
}

// Runs a layer's sub-layers on rows, for arrange(). A residual is added where a product or a norm writes.
struct TokenPass::Runner {
  using Sublayer = detail::Sublayer;
  struct Joined {
    const float *sum, *normed;
  };

  TokenPass& pass;
  const TransformerLayer& layer;
  const LayerCall* call = nullptr;
  const ListCall* lists = nullptr;

  bool has_post_norms() const { return layer.has_post_norms(); }
  float factor() const { return static_cast<float>(layer.options().residual_factor); }
  // Whether a sub-layer's output changes before it joins the stream.
  bool is_apart() const { return has_post_norms() || factor() != 1; }
  static Matrix matrix_of(const Linear& x) { return {x.weight, x.packed, x.bias}; }

  void run(Sublayer sublayer, const float* x, float* y, const float* residual) {
    if (sublayer == Sublayer::feed_forward) return feed_forward(x, y, residual);
    const bool cross = sublayer == Sublayer::cross;
    const MultiHeadAttention& attention = cross ? layer.multihead_attn : layer.self_attn;
    const MultiHeadAttentionOptions& o = attention.options();
    const int64_t width = heads_width(o);
    float *heads = pass.get(pass.heads_, width),
          *attended = pass.get(pass.attended_, o.num_heads * o.head_dim);
    if (cross) {
      pass.multiply(matrix_of(attention.q_proj), x, heads);
    } else {
      pass.multiply({attention.in_proj_weight, attention.in_proj_packed, attention.in_proj_bias}, x, heads);
    }
    if (lists != nullptr) {
      pass.attend_to_lists(o, *lists, cross, heads, attended);
    } else {
      if (o.qk_norm) {
        pass.normalize_heads(attention.q_norm, heads, o.num_heads, width);
        pass.normalize_heads(attention.k_norm, heads + o.num_heads * o.head_dim, o.num_kv_heads, width);
      }
      pass.rotate_and_append(o, *call, heads);
      pass.attend_to_cache(o, *call, heads, attended);
    }
    pass.multiply(matrix_of(attention.out_proj), attended, y, Activation::none, residual);
  }

  void feed_forward(const float* x, float* y, const float* residual) {
    const FeedForwardOptions& o = layer.options().feed_forward;
    const FeedForward& f = layer.feed_forward;
    const int64_t size = o.hidden_dim;
    float* hidden = pass.get(pass.hidden_, size);
    if (o.gated) {
      float* raw = pass.get(pass.raw_, 2 * size);
      pass.multiply(matrix_of(f.fc1), x, raw);
      kernels::gated(o.activation, raw, raw + size, hidden, {pass.rows_, size, 2 * size});
    } else {
      pass.multiply(matrix_of(f.fc1), x, hidden, o.activation);
    }
    pass.multiply(matrix_of(f.fc2), hidden, y, Activation::none, residual);
  }

  const float* run_apart(Sublayer sublayer, const float* x) {
    float* y = pass.spare(x);
    run(sublayer, x, y, nullptr);
    if (has_post_norms()) {
      const Norm& norm = sublayer == Sublayer::self ? layer.post_norm1 : layer.post_norm2;
      y = pass.normalize(norm, y);
    }
    for (int64_t i = 0; factor() != 1 && i < pass.rows_ * pass.width_; ++i) y[i] *= factor();
    return y;
  }

  const float* norm(const Norm& norm, const float* x, std::string_view) { return pass.normalize(norm, x); }

  Joined join(Sublayer sublayer, const float* x, const float* stream, const Norm& norm, std::string_view) {
    float* sum = pass.other_stream(stream);
    if (is_apart()) return {sum, pass.normalize(norm, run_apart(sublayer, x), stream, sum)};
    run(sublayer, x, sum, stream);
    return {sum, pass.normalize(norm, sum)};
  }

  const float* add(Sublayer sublayer, const float* x, const float* stream) {
    float* sum = pass.other_stream(stream);
    if (is_apart()) {
      const int64_t count = pass.rows_ * pass.width_;
      std::copy_n(stream, count, sum);
      kernels::accumulate(sum, run_apart(sublayer, x), count);
    } else {
      run(sublayer, x, sum, stream);
    }
    return sum;
  }
};

void TokenPass::run(const TransformerLayer& layer, const LayerCall& call) {
  Runner runner{*this, layer, &call};
  x_ = detail::arrange(layer, runner, x_);
}

void TokenPass::run(const TransformerLayer& layer, const ListCall& call) {
  Runner runner{*this, layer, nullptr, &call};
  x_ = detail::arrange(layer, runner, x_);
}

void TokenPass::run(const Norm& norm) { x_ = normalize(norm, x_); }

Tensor TokenPass::result() const {
  Tensor result = Tensor::empty({batch_, tokens_, width_});
  std::copy_n(x_, result.numel(), result.data<float>());
  return result;
}

}  // namespace multihead::nn
