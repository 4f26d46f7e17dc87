#include "cli/bench/timed_attention.h"

#include <algorithm>
#include <cmath>

#include "cli/bench/timing.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/peak/peak.h"
#include "multihead/ops/shape.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

constexpr double kPairsInFull = 0x1p22;  // per key head: about a second in f64
constexpr int64_t kRowsOtherwise = 32;

Tensor first_batch(const Tensor& x, int64_t heads) { return slice(slice(x, 0, 0, 1), 1, 0, heads); }

double largest_error(const Tensor& got, const Tensor& exact) {
  const std::vector<double> x = got.to_vector<double>(), y = exact.to_vector<double>();
  double error = 0, largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (!(difference <= error)) error = difference;  // NaN counts as large
    largest = std::max(largest, std::abs(y[i]));
  }
  return std::isnan(error) ? INFINITY : error / std::max(largest, 1e-30);
}

}  // namespace

TimedAttention::TimedAttention(const BenchShape& shape) : shape_(shape) {
  Rng rng(20261121);
  const auto operand = [&](int64_t heads, int64_t length) {
    Tensor x = randn({shape.batch, heads, length, shape.dim}, rng);
    if (shape.bf16) x = x.to(Dtype::bf16);
    // The memory of [B, T, H, D], seen as [B, H, T, D].
    return shape.bthd ? transpose(contiguous(transpose(x, 1, 2)), 1, 2) : x;
  };
  query_ = operand(shape.heads, shape.queries);
  for (int64_t i = 0; i < ring_size(shape); ++i) {
    ring_.emplace_back(operand(shape.kv_heads, shape.keys), operand(shape.kv_heads, shape.keys));
  }
  if (shape.direction != Direction::forward) d_out_ = operand(shape.heads, shape.queries);
  if (shape.bias) bias_ = randn({1, shape.heads, shape.queries, shape.keys}, rng);
  if (shape.alibi || shape.lambda) {
    slopes_ = Tensor::empty({shape.heads});
    for (int64_t h = 0; h < shape.heads; ++h) {
      slopes_.data<float>()[h] =
          std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(shape.heads));
    }
  }
  if (shape.lengths) {
    valid_ = Tensor::of<int64_t>({shape.batch}, sample_lengths(shape));
    for (int64_t b = 0; b < shape.batch && d_out_.defined(); ++b) {  // padding has no gradient
      slice(slice(d_out_, 0, b, b + 1), 2, valid_.data<int64_t>()[b], shape.queries).fill(0);
    }
  }
  if (shape.direction != Direction::forward) {
    for (Tensor* x : {&query_, &ring_[0].first, &ring_[0].second}) x->set_requires_grad();
    if (bias_.defined()) bias_.set_requires_grad();
  }
}

ScoreMod TimedAttention::score_mod() const {
  if (!shape_.lambda) return {};
  const float* slope = slopes_.data<float>();
  return multihead::score_mod([slope](auto score, ScoreIndex at) {
    return score - slope[at.head] * static_cast<float>(std::abs(at.query - at.key));
  });
}

// `first_only`: for batch 0 and the query heads of key head 0, from `first_row` on.
AttentionOptions TimedAttention::options(Dtype dtype, int64_t first_row, bool first_only, Rng* rng) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  AttentionOptions o;
  if (shape_.window > 0) {
    o.mask = window(shape_.window - 1, 0);
  } else if (shape_.causal) {
    o.mask = causal();
  }
  if (shape_.lengths) {
    const Tensor valid = first_only ? slice(valid_, 0, 0, 1) : valid_;
    o.mask &= lengths(valid);
    if (first_row == 0) o.mask &= query_lengths(valid);
  }
  o.softcap = static_cast<float>(shape_.softcap);
  if (bias_.defined()) {
    o.bias = bias_;
    if (first_only) o.bias = slice(first_batch(bias_, group), 2, first_row, shape_.queries).to(dtype);
  }
  if (shape_.alibi) o.alibi_slopes = first_only ? slice(slopes_, 0, 0, group).to(dtype) : slopes_;
  o.dropout_p = shape_.dropout;
  if (shape_.dropout > 0) o.rng = rng;
  return o;
}

double TimedAttention::call(int64_t number) {
  const auto& [key, value] = ring_[static_cast<size_t>(number) % ring_.size()];
  results_.clear();
  Rng rng(1);
  const AttentionOptions o = options(Dtype::f32, 0, false, &rng);
  if (shape_.direction == Direction::forward) {
    const NoTape off;
    const double begin = wall_seconds();
    results_.push_back(attention(query_, key, value, o, score_mod()));
    return wall_seconds() - begin;
  }
  for (const Tensor& x : {query_, key, value, bias_}) {
    if (x.defined()) x.set_grad({});
  }
  Tape tape;
  double begin = wall_seconds();
  const Tensor out = attention(query_, key, value, o, score_mod());
  if (shape_.direction == Direction::backward) begin = wall_seconds();
  tape.backward(out, d_out_);
  const double seconds = wall_seconds() - begin;
  results_ = {out.detach(), query_.grad(), key.grad(), value.grad()};
  return seconds;
}

std::vector<double> TimedAttention::burst(double seconds) {
  const double end = wall_seconds() + seconds;
  const double first = call(calls_++);
  if (first > seconds) return {first};
  std::vector<double> times;
  while (times.empty() || wall_seconds() < end) {
    if (train::StopSignals::received() != 0) throw Interrupted();
    times.push_back(call(calls_++));
  }
  return times;
}

double TimedAttention::read_gbps() {
  const auto& [key, value] = ring_[static_cast<size_t>(calls_++) % ring_.size()];
  const char* operands[] = {static_cast<const char*>(key.raw()), static_cast<const char*>(value.raw())};
  const int64_t parts = num_threads();
  const size_t part = key.bytes() / static_cast<size_t>(parts);
  const double begin = wall_seconds();
  parallel_for(2 * parts, [&](int64_t i, int) {
    const char* from = operands[i % 2] + static_cast<size_t>(i / 2) * part;
    kernels::read_gbps(reinterpret_cast<const float*>(from), part, 0);
  });
  return 2e-9 * static_cast<double>(part) * static_cast<double>(parts) / (wall_seconds() - begin);
}

void TimedAttention::compute_exact() {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t length = shape_.lengths ? valid_.data<int64_t>()[0] : shape_.queries;
  const double per_row = static_cast<double>(group * shape_.keys);
  const bool in_full = per_row * static_cast<double>(shape_.queries) <= kPairsInFull;
  // Dropout and lengths count rows from the first one.
  if (!in_full && (shape_.dropout > 0 || shape_.lengths || shape_.lambda)) return;
  first_row_ = in_full ? 0 : std::max<int64_t>(0, shape_.queries - kRowsOtherwise);
  rows_ = (in_full ? length : shape_.queries) - first_row_;
  const auto exact = [&](const Tensor& x, int64_t heads, bool by_row) {
    const Tensor part = first_batch(x, heads);
    return (by_row ? slice(part, 2, first_row_, shape_.queries) : part).to(Dtype::f64).clone();
  };
  Tensor q = exact(query_, group, true), k = exact(ring_[0].first, 1, false);
  Tensor v = exact(ring_[0].second, 1, false);
  const bool gradients = d_out_.defined();
  if (gradients) q.set_requires_grad(), k.set_requires_grad(), v.set_requires_grad();
  Rng rng(1);
  AttentionOptions o = options(Dtype::f64, first_row_, true, &rng);
  Tape tape;
  const Tensor out = attention(q, k, v, o, score_mod());
  exact_ = {slice(out.detach(), 2, 0, rows_)};
  if (!gradients) return;
  tape.backward(out, exact(d_out_, group, true));
  exact_.push_back(slice(q.grad(), 2, 0, rows_));
  if (in_full) exact_.push_back(k.grad()), exact_.push_back(v.grad());
}

std::optional<double> TimedAttention::error() {
  call(0);
  compute_exact();
  if (exact_.empty()) return std::nullopt;
  const int64_t group = shape_.heads / shape_.kv_heads;
  double error = 0;
  for (size_t i = 0; i < exact_.size(); ++i) {  // out, d_query, d_key, d_value
    Tensor got = first_batch(results_[i], i < 2 ? group : 1);
    if (i < 2) got = slice(got, 2, first_row_, first_row_ + rows_);
    error = std::max(error, largest_error(got, exact_[i]));
  }
  return error;
}

// Tiles multiply f32 as one, two or three bf16 numbers of 8 bits each (amx/precision.h).
double TimedAttention::tolerance() const {
  constexpr double kBf16 = 3e-2, kTwoParts = 2e-4, kF32 = 5e-5;
  if (shape_.bf16) return kBf16;
  if (!kernels::has_tiles()) return kF32;
  switch (kernels::float32_matmul_precision()) {
    case kernels::MatmulPrecision::medium:
      return kBf16;
    case kernels::MatmulPrecision::high:
      return kTwoParts;
    default:
      return kF32;
  }
}

}  // namespace multihead::cli
