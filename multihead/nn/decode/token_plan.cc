#include "multihead/nn/decode/token_plan.h"

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

TokenPlan::TokenPlan(const Tensor& x, std::span<const int64_t> held, std::span<const int64_t> counts)
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

std::string TokenPlan::declined(const Tensor& x) {
  if (x.dtype() != Dtype::f32) return concat("the stream is ", x.dtype());
  if (x.size(0) * x.size(1) > kMostRows) return concat(x.size(0) * x.size(1), " new tokens");
  if (Tape::current() != nullptr) return "a tape is recording";
  if (Autocast::active()) return "autocast";
  if (detail::looking()) return "named points";
  return {};
}

std::string TokenPlan::check(const TransformerLayer& layer, const LayerCall& call) const {
  const AttentionCall& a = call.attention;
  const MultiHeadAttention& self = layer.self_attn;
  const MultiHeadAttentionOptions& o = self.options();
  if (call.rng != nullptr) return "dropout";
  static constexpr std::string_view kTaken[] = {"softcap", "alibi_slopes"};
  if (const char* other = multihead::detail::other_option(a, kTaken)) {
    return concat("attention with ", other);
  }
  if (a.score_mod) return "attention with score_mod";
  if (o.zero_attn) return "attention with zero_attn";
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

float* TokenPlan::keep(const Tensor& x) {
  kept_.push_back(x);
  return x.data<float>();
}

float* TokenPlan::get(Buffer& buffer, int64_t width) {
  if (width > buffer.width) {
    buffer = {keep(Tensor::empty({rows_, width})), width};
  }
  return buffer.data;
}

void TokenPlan::normalize(const Norm& norm, const float* x, float* y, const float* residual, float* sum) {
  const float* factors = keep(norm.factors());
  float* moments = get(moments_, 2);
  steps_.emplace_back(kernels::NormArgs<float>{.rows = rows_,
                                               .size = width_,
                                               .eps = norm.eps(),
                                               .x = x,
                                               .residual = residual,
                                               .sum = sum,
                                               .weight = factors,
                                               .bias = floats_of(norm.bias),
                                               .y = y,
                                               .mean = norm.kind() == NormKind::layer ? moments : nullptr,
                                               .inv_std = moments + rows_});
}

// The first `count` heads of every row, in place.
void TokenPlan::normalize(const Norm& norm, float* heads, int64_t count, int64_t stride) {
  const float* factors = keep(norm.factors());
  float* moments = get(moments_, count);
  for (int64_t row = 0; row < rows_; ++row) {
    float* x = heads + row * stride;
    steps_.emplace_back(kernels::NormArgs<float>{.rows = count,
                                                 .size = norm.weight.size(0),
                                                 .eps = norm.eps(),
                                                 .x = x,
                                                 .weight = factors,
                                                 .y = x,
                                                 .inv_std = moments});
  }
}

void TokenPlan::multiply(const Matrix& m, const float* x, float* y, Activation activation,
                         const float* residual) {
  if (m.packed.defined()) {
    steps_.emplace_back(kernels::PackedLinearArgs{.x = x,
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
  steps_.emplace_back(kernels::GemmArgs<float>{.a = x,
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

void TokenPlan::attend(const TransformerLayer& layer, const LayerCall& call, const float* x, float* y,
                       const float* residual) {
  const MultiHeadAttention& self = layer.self_attn;
  const MultiHeadAttentionOptions& o = self.options();
  const int64_t width = heads_width(o), d = o.head_dim;
  float* heads = get(heads_, width);
  multiply({self.in_proj_weight, self.in_proj_packed, self.in_proj_bias}, x, heads);
  if (o.qk_norm) {
    normalize(self.q_norm, heads, o.num_heads, width);
    normalize(self.k_norm, heads + o.num_heads * d, o.num_kv_heads, width);
  }
  float* attended = get(attended_, o.num_heads * d);
  steps_.emplace_back(AttendStep{.heads = heads,
                                 .out = attended,
                                 .cache = call.update.cache,
                                 .rotary = call.attention.rotary,
                                 .alibi_slopes = floats_of(call.attention.alibi_slopes),
                                 .num_heads = o.num_heads,
                                 .kv_heads = o.num_kv_heads,
                                 .head_dim = d,
                                 .window = call.update.window,
                                 .scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(d))),
                                 .softcap = call.attention.softcap});
  if (call.attention.alibi_slopes.defined()) keep(call.attention.alibi_slopes);
  multiply({self.out_proj.weight, self.out_proj.packed, self.out_proj.bias}, attended, y, Activation::none,
           residual);
}

void TokenPlan::attend(const MultiHeadAttention& attention, const ListCall& call, bool cross, const float* x,
                       float* y, const float* residual) {
  const MultiHeadAttentionOptions& o = attention.options();
  const Linear &queries = attention.q_proj, &last = attention.out_proj;
  float *heads = get(heads_, heads_width(o)), *attended = get(attended_, o.num_heads * o.head_dim);
  if (cross) {
    multiply({queries.weight, queries.packed, queries.bias}, x, heads);
  } else {
    multiply({attention.in_proj_weight, attention.in_proj_packed, attention.in_proj_bias}, x, heads);
  }
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(o.head_dim)));
  steps_.emplace_back(
      AttendListStep{heads, attended, call, cross, o.num_heads, o.head_dim, static_cast<float>(scale)});
  multiply({last.weight, last.packed, last.bias}, attended, y, Activation::none, residual);
}

void TokenPlan::feed_forward(const TransformerLayer& layer, const float* x, float* y, const float* residual) {
  const FeedForwardOptions& o = layer.options().feed_forward;
  const FeedForward& f = layer.feed_forward;
  float* hidden = get(hidden_, o.hidden_dim);
  if (o.gated) {
    float* raw = get(raw_, 2 * o.hidden_dim);
    multiply({f.fc1.weight, f.fc1.packed, f.fc1.bias}, x, raw);
    steps_.emplace_back(GateStep{o.activation, raw, hidden, rows_, o.hidden_dim});
  } else {
    multiply({f.fc1.weight, f.fc1.packed, f.fc1.bias}, x, hidden, o.activation);
  }
  multiply({f.fc2.weight, f.fc2.packed, f.fc2.bias}, hidden, y, Activation::none, residual);
}

std::string TokenPlan::add(const TransformerLayer& layer, const LayerCall& call) {
  if (std::string reason = check(layer, call); !reason.empty()) return reason;
  add(
      layer, [&](const float* x, float* y, const float* r) { attend(layer, call, x, y, r); },
      [](const float*, float*, const float*) {});
  return {};
}

void TokenPlan::add(const TransformerLayer& layer, const ListCall& call) {
  add(
      layer, [&](const float* x, float* y, const float* r) { attend(layer.self_attn, call, false, x, y, r); },
      [&](const float* x, float* y, const float* r) { attend(layer.multihead_attn, call, true, x, y, r); });
}

// In the forms of TransformerLayer. A residual is added where a product or a norm writes.
void TokenPlan::add(const TransformerLayer& layer, Sublayer self, Sublayer cross) {
  float *normed = get(normed_, width_), *branch = get(branch_, width_), *sum = other_stream();
  const Block block = layer.options().block;
  const bool has_cross = layer.options().cross_attention;
  if (block == Block::sequential && !layer.options().norm_first) {
    self(x_, sum, x_);
    normalize(layer.norm1, sum, normed);
    if (has_cross) {
      cross(normed, branch, normed);
      normalize(layer.norm2, branch, normed);
    }
    feed_forward(layer, normed, branch, normed);
    normalize(has_cross ? layer.norm3 : layer.norm2, branch, sum);
    x_ = sum;
    return;
  }
  normalize(layer.norm1, x_, normed);
  if (block == Block::sandwich) {
    self(normed, branch, nullptr);
    normalize(layer.post_norm1, branch, normed);
    normalize(layer.norm2, normed, branch, x_, sum);
    feed_forward(layer, branch, normed, nullptr);
    normalize(layer.post_norm2, normed, branch);
    steps_.emplace_back(AddStep{sum, branch, rows_ * width_});
    x_ = sum;
    return;
  }
  self(normed, sum, x_);
  if (block == Block::sequential) normalize(layer.norm2, sum, normed);
  if (block == Block::parallel) normalize(layer.norm2, x_, normed);
  x_ = sum;
  if (block == Block::attention_only) return;
  if (has_cross) {
    float* joined = other_stream();
    cross(normed, joined, x_);
    normalize(layer.norm3, joined, normed);
    x_ = joined;
  }
  float* next = other_stream();
  feed_forward(layer, normed, next, x_);
  x_ = next;
}

void TokenPlan::add(const Norm& norm) {
  float* y = other_stream();
  normalize(norm, x_, y);
  x_ = y;
}

void TokenPlan::run(const kernels::NormArgs<float>& s) { kernels::norm(s); }
void TokenPlan::run(const kernels::PackedLinearArgs& s) { kernels::packed_linear(s); }
void TokenPlan::run(const kernels::GemmArgs<float>& s) { kernels::gemm(s); }
void TokenPlan::run(const AddStep& s) { kernels::accumulate(s.to, s.from, s.count); }
void TokenPlan::run(const GateStep& s) {
  kernels::gated(s.activation, s.from, s.from + s.size, s.to, {s.rows, s.size, 2 * s.size});
}

void TokenPlan::run(const AttendStep& s) {
  make_own(s.cache->key);
  make_own(s.cache->value);
  const bool narrow = s.cache->key.dtype() == Dtype::bf16;
  const int64_t d = s.head_dim, width = (s.num_heads + 2 * s.kv_heads) * d, out = s.num_heads * d;
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t b = row / tokens_, t = row % tokens_;
    float* heads = s.heads + row * width;
    if (s.rotary != nullptr) {
      const int64_t pairs = s.rotary->cos.size(2);
      const int64_t at = (s.rotary->cos.size(0) == 1 ? t : row) * pairs;
      multihead::detail::rotate_in_place(heads, s.rotary->cos.data<float>() + at,
                                         s.rotary->sin.data<float>() + at,
                                         {s.num_heads + s.kv_heads, d, pairs, s.rotary->layout});
    }
    if (t >= counts_[static_cast<size_t>(b)]) continue;
    const int64_t token = held_[static_cast<size_t>(b)] + t;
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      const float *key = heads + out + h * d, *value = key + s.kv_heads * d;
      append_head(s.cache->key, b, h, token, key, d);
      append_head(s.cache->value, b, h, token, value, d);
    }
  }
  const auto operand = [](const Tensor& x) {
    const Shape& strides = x.strides();
    return kernels::Operand(x.raw(), x.dtype(), {strides[0], strides[1], strides[2]});
  };
  const kernels::Strides3 results{tokens_ * out, d, out};
  kernels::AttentionInput in{
      {s.heads, {tokens_ * width, d, width}}, operand(s.cache->key), operand(s.cache->value)};
  kernels::AttentionOutput to{{s.out, results}, {}};
  if (narrow) {
    narrow_.resize(static_cast<size_t>(2 * rows_ * out));
    for (int64_t i = 0; i < rows_ * out; ++i) narrow_[i] = BFloat16(s.heads[i / out * width + i % out]);
    in.query = {narrow_.data(), results};
    to.out = {narrow_.data() + rows_ * out, results};
  }
  kernels::AttentionProblem p;
  p.batch = batch_, p.heads = s.num_heads, p.kv_heads = s.kv_heads;
  p.queries = tokens_, p.keys = *std::max_element(totals_.begin(), totals_.end());
  p.head_dim = p.value_dim = d;
  p.scale = s.scale;
  p.causal = true;
  p.diagonal = held_[0], p.diagonals = batch_ > 1 ? held_.data() : nullptr;
  if (s.window > 0) p.window_left = s.window - 1;
  p.key_lengths = totals_.data();
  kernels::ScoreTerms terms;
  terms.softcap = s.softcap;
  terms.alibi_slopes = s.alibi_slopes;
  kernels::attention_forward(p, terms, in, to);
  for (int64_t i = 0; narrow && i < rows_ * out; ++i) s.out[i] = static_cast<float>(narrow_[rows_ * out + i]);
}

void TokenPlan::run(const AttendListStep& s) {
  const ListCall& call = s.call;
  const int64_t size = s.num_heads * s.head_dim, stride = s.cross ? size : 3 * size,
                at = s.cross ? call.source_at : call.own_at;
  const bool interleaved = kernels::token_attention_interleaves(s.num_heads, s.head_dim);
  for (int64_t row = 0, end; row < rows_; row = end) {
    const float* query = s.query + row * stride;
    const int64_t list = s.cross ? call.source_of[static_cast<size_t>(row)] : row;
    end = row + 1;
    if (s.cross) {
      while (end < rows_ && call.source_of[static_cast<size_t>(end)] == list) ++end;
    } else {
      std::copy_n(query + size, 2 * size, call.added + row * call.added_width + at);
    }
    const TokenList& tokens = (s.cross ? call.source : call.own)[static_cast<size_t>(list)];
    const auto scratch = kernels::token_attention_scratch(std::ssize(tokens), interleaved);
    if (scratch > std::ssize(scores_)) scores_.resize(static_cast<size_t>(scratch));
    kernels::token_attention({.query = query,
                              .query_stride = stride,
                              .rows = end - row,
                              .tokens = tokens.data(),
                              .count = std::ssize(tokens),
                              .key_offset = at,
                              .value_offset = at + size,
                              .heads = s.num_heads,
                              .head_dim = s.head_dim,
                              .scale = s.scale,
                              .bias = s.cross ? nullptr : call.bias,
                              .out = s.out + row * size,
                              .out_stride = size,
                              .scratch = scores_.data(),
                              .interleaved = interleaved});
  }
}

Tensor TokenPlan::run() {
  for (const TokenStep& step : steps_) {
    std::visit([&](const auto& s) { run(s); }, step);
  }
  Tensor result = Tensor::empty({batch_, tokens_, width_});
  std::copy_n(x_, result.numel(), result.data<float>());
  return result;
}

}  // namespace multihead::nn
