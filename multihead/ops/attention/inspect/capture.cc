#include "multihead/ops/attention/inspect/capture-inl.h"

#include <numeric>

#include "multihead/core/error.h"
#include "multihead/kernels/attention/inspect.h"

namespace multihead::detail {
namespace {

std::vector<int64_t> all_or(const std::vector<int64_t>& chosen, int64_t count) {
  std::vector<int64_t> result = chosen;
  if (result.empty()) {
    result.resize(static_cast<size_t>(count));
    std::iota(result.begin(), result.end(), 0);
  }
  for (int64_t& index : result) index += index < 0 ? count : 0;
  return result;
}

const void* sinks_of(const BoundAttention& bound) {
  const Tensor& sinks = bound.tensor(&AttentionOptions::sinks);
  return sinks.defined() ? sinks.raw() : nullptr;
}

// The rows of capture.weights, in order.
std::vector<kernels::CaptureRow> rows_of(const AttentionSizes& sizes, const AttentionCapture& capture) {
  const std::vector<int64_t> queries = all_or(capture.query_rows, sizes.queries);
  std::vector<kernels::CaptureRow> rows;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (const int64_t h : all_or(capture.heads, sizes.heads)) {
      for (const int64_t i : queries) rows.push_back({b, h, i});
    }
  }
  return rows;
}

void capture_weights(const BoundAttention& bound, const kernels::AttentionInput& in,
                     AttentionCapture& capture) {
  const AttentionSizes& sizes = bound.sizes();
  const auto count = [](const std::vector<int64_t>& chosen, int64_t all) {
    return chosen.empty() ? all : static_cast<int64_t>(chosen.size());
  };
  const Shape shape = {sizes.batch, count(capture.heads, sizes.heads),
                       count(capture.query_rows, sizes.queries), sizes.keys};
  const Dtype dtype = in.query.dtype;
  capture.weights = sizes.ragged ? Tensor::zeros(shape, dtype) : Tensor::empty(shape, dtype);
  const std::vector<kernels::CaptureRow> rows = rows_of(sizes, capture);
  kernels::attention_capture(bound.problem(), bound.terms(), in, sinks_of(bound), capture.stage, rows.data(),
                             static_cast<int64_t>(rows.size()), capture.weights.raw(), sizes.keys);
}

}  // namespace

void check_capture(const BoundAttention& bound, const AttentionCapture& capture) {
  const AttentionSizes& sizes = bound.sizes();
  const bool asks_of_weights =
      capture.stage != CaptureStage::probabilities || !capture.heads.empty() || !capture.query_rows.empty();
  MH_CHECK(
      capture.want_weights || !asks_of_weights, ValueError, bound.who(),
      ": capture.stage, capture.heads and capture.query_rows choose among the weights, which are not wanted");
  for (const int64_t h : capture.heads) {
    MH_CHECK(h >= -sizes.heads && h < sizes.heads, ValueError, bound.who(),
             ": capture.heads must be in [-H, H=", sizes.heads, "), got ", h);
  }
  for (const int64_t i : capture.query_rows) {
    MH_CHECK(i >= -sizes.queries && i < sizes.queries, ValueError, bound.who(),
             ": capture.query_rows must be in [-Tq, Tq=", sizes.queries, "), got ", i);
  }
  MH_CHECK(capture.top_k >= 0, ValueError, bound.who(), ": capture.top_k must be >= 0, got ", capture.top_k);
}

void fill_capture(const BoundAttention& bound, const kernels::AttentionInput& in, AttentionCapture& capture) {
  const AttentionSizes& s = bound.sizes();
  for (const auto member : kCaptured) capture.*member = Tensor();
  if (capture.want_weights) capture_weights(bound, in, capture);
  kernels::CaptureSummary to;
  to.top_k = capture.top_k;
  const auto memory = [&](Tensor& x, const Shape& shape) {
    x = Tensor::empty(shape, in.query.dtype);
    return x.raw();
  };
  if (capture.want_key_mass) to.key_mass = memory(capture.key_mass, {s.batch, s.heads, s.keys});
  if (capture.want_entropy) to.entropy = memory(capture.entropy, {s.batch, s.heads, s.queries});
  if (capture.top_k > 0) {
    const Shape shape = {s.batch, s.heads, s.queries, capture.top_k};
    to.top_weights = memory(capture.top_weights, shape);
    capture.top_keys = Tensor::empty(shape, Dtype::i64);
    to.top_keys = capture.top_keys.data<int64_t>();
  }
  if (to.any()) kernels::attention_summary(bound.problem(), bound.terms(), in, sinks_of(bound), to);
}

void add_capture_gradients(const BoundAttention& bound, const kernels::AttentionInput& in,
                           const AttentionCapture& gradients, const kernels::AttentionGradient& to,
                           void* d_sinks) {
  std::vector<Tensor> kept;  // while the pointers are in use
  const auto memory = [&](const Tensor& x) -> void* {
    if (!x.defined()) return nullptr;
    kept.push_back(x.contiguous());
    return kept.back().raw();
  };
  kernels::CaptureGradient from;
  from.weights = memory(gradients.weights), from.weights_stride = bound.sizes().keys;
  from.summary = {memory(gradients.key_mass), memory(gradients.entropy), gradients.top_k,
                  memory(gradients.top_weights),
                  gradients.top_keys.defined() ? gradients.top_keys.data<int64_t>() : nullptr};
  if (!from.weights && !from.summary.any()) return;
  std::vector<kernels::CaptureRow> rows;
  if (from.weights) rows = rows_of(bound.sizes(), gradients);
  from.stage = gradients.stage, from.rows = rows.data(), from.count = static_cast<int64_t>(rows.size());
  kernels::attention_capture_backward(bound.problem(), bound.terms(), in, sinks_of(bound), from, to, d_sinks);
}

}  // namespace multihead::detail
