#include "multihead/ops/attention/capture-inl.h"

#include <numeric>

#include "multihead/core/error.h"

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

void capture_weights(const BoundAttention& bound, const kernels::AttentionInput& in,
                     const kernels::Operand& lse, AttentionCapture& capture) {
  const AttentionSizes& sizes = bound.sizes();
  const std::vector<int64_t> heads = all_or(capture.heads, sizes.heads);
  const std::vector<int64_t> queries = all_or(capture.query_rows, sizes.queries);
  const Shape shape = {sizes.batch, static_cast<int64_t>(heads.size()), static_cast<int64_t>(queries.size()),
                       sizes.keys};
  const Dtype dtype = in.query.dtype;
  capture.weights = sizes.ragged ? Tensor::zeros(shape, dtype) : Tensor::empty(shape, dtype);
  std::vector<kernels::CaptureRow> rows;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (const int64_t h : heads) {
      for (const int64_t i : queries) rows.push_back({b, h, i});
    }
  }
  kernels::attention_capture(bound.problem(), bound.terms(), in, lse, capture.stage, rows.data(),
                             static_cast<int64_t>(rows.size()), capture.weights.raw(), sizes.keys);
}

}  // namespace

void check_capture(const BoundAttention& bound, const AttentionCapture& capture) {
  const AttentionSizes& sizes = bound.sizes();
  for (const int64_t h : capture.heads) {
    MH_CHECK(h >= -sizes.heads && h < sizes.heads, ValueError, bound.who(),
             ": capture.heads must be in [0, H=", sizes.heads, "), got ", h);
  }
  for (const int64_t i : capture.query_rows) {
    MH_CHECK(i >= -sizes.queries && i < sizes.queries, ValueError, bound.who(),
             ": capture.query_rows must be in [0, Tq=", sizes.queries, "), got ", i);
  }
  MH_CHECK(capture.top_k >= 0, ValueError, bound.who(), ": capture.top_k must be >= 0, got ", capture.top_k);
}

void fill_capture(const BoundAttention& bound, const kernels::AttentionInput& in, const kernels::Operand& lse,
                  AttentionCapture& capture) {
  const AttentionSizes& s = bound.sizes();
  if (capture.weights_wanted) capture_weights(bound, in, lse, capture);
  kernels::AttentionSummary to;
  to.top_k = capture.top_k;
  if (capture.key_mass_wanted) {
    capture.key_mass = Tensor::empty({s.batch, s.heads, s.keys});
    to.key_mass = capture.key_mass.data<float>();
  }
  if (capture.entropy_wanted) {
    capture.entropy = Tensor::empty({s.batch, s.heads, s.queries});
    to.entropy = capture.entropy.data<float>();
  }
  if (capture.top_k > 0) {
    capture.top_weights = Tensor::empty({s.batch, s.heads, s.queries, capture.top_k});
    capture.top_keys = Tensor::empty({s.batch, s.heads, s.queries, capture.top_k}, Dtype::i64);
    to.top_weights = capture.top_weights.data<float>();
    to.top_keys = capture.top_keys.data<int64_t>();
  }
  if (to.key_mass || to.entropy || to.top_weights) {
    kernels::attention_summary(bound.problem(), bound.terms(), in, lse, to);
  }
}

}  // namespace multihead::detail
