#include "multihead/ops/attention/capture-inl.h"

#include <algorithm>
#include <cmath>
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

template <class T>
void capture_weights(const BoundAttention& bound, const CaptureInput<T>& in, AttentionCapture& capture) {
  const AttentionSizes& sizes = bound.sizes();
  const std::vector<int64_t> heads = all_or(capture.heads, sizes.heads);
  const std::vector<int64_t> queries = all_or(capture.query_rows, sizes.queries);
  const Shape shape = {sizes.batch, static_cast<int64_t>(heads.size()), static_cast<int64_t>(queries.size()),
                       sizes.keys};
  capture.weights = sizes.ragged ? Tensor::zeros(shape, dtype_of<T>) : Tensor::empty(shape, dtype_of<T>);
  T* to = capture.weights.data<T>();
  std::vector<kernels::CaptureRow> rows;
  const auto flush = [&](T* first) {
    kernels::attention_capture(bound.problem(), bound.terms<T>(), in.input, in.lse, in.lse_strides,
                               capture.stage, rows.data(), static_cast<int64_t>(rows.size()), first,
                               sizes.keys);
    rows.clear();
  };
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (const int64_t h : heads) {
      T* first = to;
      for (const int64_t i : queries) {
        if (i < sizes.query_count(b)) {
          if (rows.empty()) first = to;
          rows.push_back({b, h, i});
        } else if (!rows.empty()) {
          flush(first);
        }
        to += sizes.keys;
      }
      if (!rows.empty()) flush(first);
    }
  }
}

// The kernel summarises f32; f64 goes row by row over captured probabilities.
struct SummaryTensors {
  float* key_mass;
  float* entropy;
  int64_t top_k;
  float* top_weights;
  int64_t* top_keys;
};

void summarise(const BoundAttention& bound, const CaptureInput<float>& in, const SummaryTensors& to) {
  kernels::attention_summary(bound.problem(), bound.terms<float>(), in.input, in.lse, in.lse_strides,
                             {to.key_mass, to.entropy, to.top_k, to.top_weights, to.top_keys});
}

void summarise(const BoundAttention& bound, const CaptureInput<double>& in, const SummaryTensors& to) {
  const AttentionSizes& sizes = bound.sizes();
  std::vector<double> weight(static_cast<size_t>(sizes.keys)), mass(weight.size());
  std::vector<int64_t> order(weight.size());
  for (int64_t task = 0; task < sizes.batch * sizes.heads; ++task) {
    std::fill(mass.begin(), mass.end(), 0.0);
    const int64_t b = task / sizes.heads;
    for (int64_t i = 0; i < sizes.queries; ++i) {
      const int64_t row = task * sizes.queries + i;
      std::fill(weight.begin(), weight.end(), 0.0);
      if (i < sizes.query_count(b)) {
        const kernels::CaptureRow at{b, task % sizes.heads, i};
        kernels::attention_capture(bound.problem(), bound.terms<double>(), in.input, in.lse, in.lse_strides,
                                   CaptureStage::probabilities, &at, 1, weight.data(), sizes.keys);
      }
      double entropy = 0;
      for (size_t j = 0; j < weight.size(); ++j) {
        mass[j] += weight[j];
        if (weight[j] > 0) entropy -= weight[j] * std::log(weight[j]);
      }
      if (to.entropy) to.entropy[row] = static_cast<float>(entropy);
      if (to.top_k == 0) continue;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
        return weight[static_cast<size_t>(x)] > weight[static_cast<size_t>(y)];
      });
      for (int64_t r = 0; r < to.top_k; ++r) {
        const bool present = r < sizes.keys && weight[static_cast<size_t>(order[static_cast<size_t>(r)])] > 0;
        const int64_t key = present ? order[static_cast<size_t>(r)] : -1;
        to.top_keys[row * to.top_k + r] = key;
        to.top_weights[row * to.top_k + r] =
            present ? static_cast<float>(weight[static_cast<size_t>(key)]) : 0;
      }
    }
    for (size_t j = 0; to.key_mass && j < mass.size(); ++j) {
      to.key_mass[task * sizes.keys + static_cast<int64_t>(j)] = static_cast<float>(mass[j]);
    }
  }
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

template <class T>
void fill_capture(const BoundAttention& bound, const CaptureInput<T>& in, AttentionCapture& capture) {
  const AttentionSizes& s = bound.sizes();
  if (capture.weights_wanted) capture_weights(bound, in, capture);
  SummaryTensors to{nullptr, nullptr, capture.top_k, nullptr, nullptr};
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
  if (to.key_mass || to.entropy || to.top_weights) summarise(bound, in, to);
}

template void fill_capture(const BoundAttention&, const CaptureInput<float>&, AttentionCapture&);
template void fill_capture(const BoundAttention&, const CaptureInput<double>&, AttentionCapture&);

}  // namespace multihead::detail
