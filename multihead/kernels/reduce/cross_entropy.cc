// Per row: maximum, exponentials with their sum (kept in d_logits if there is one), scaling. A row stays in
// cache.
#include "multihead/kernels/reduce/cross_entropy.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/reduce/row_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Σ (x - max)
HWY_INLINE float RowTotalBelow(const float* x, float max, int64_t size) {
  return SumOfChains(size, [&](int64_t from, int64_t n) HWY_ATTR {
    const Pack shift = Set(max);
    Pack total = Set(0);
    ForPacks(
        n, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, Sub(at.Load(x + from + i, max), shift)); });
    return Sum(total);
  });
}

void CrossEntropyRows(const CrossEntropyArgs<float>& a, int64_t begin, int64_t end) {
  const float smoothing = static_cast<float>(a.smoothing), scale = static_cast<float>(a.scale);
  const float share = smoothing / static_cast<float>(a.classes);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = a.logits + row * a.classes;
    float* d = a.d_logits == nullptr ? nullptr : a.d_logits + row * a.classes;
    const int64_t target = a.targets[row];
    if (target == a.ignore_index) {
      a.losses[row] = 0;
      if (d != nullptr) std::fill(d, d + a.classes, 0.0f);
      continue;
    }
    const float max = RowMax(x, a.classes);
    // Everything below max first: logits of 1e4 must not eat the digits of the loss.
    float expected = (1 - smoothing) * (x[target] - max);
    if (smoothing > 0) expected += share * RowTotalBelow(x, max, a.classes);
    if (d == nullptr) {
      a.losses[row] = LogOf(RowExpSum(x, max, a.classes)) - expected;
      continue;
    }
    const float sum = RowExp(x, max, d, a.classes);
    a.losses[row] = LogOf(sum) - expected;
    const Pack factor = Set(scale / sum), shift = Set(scale * share);
    ForPacks(a.classes,
             [&](int64_t i, auto at) HWY_ATTR { at.Store(Sub(Mul(at.Load(d + i), factor), shift), d + i); });
    d[target] -= scale * (1 - smoothing);
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 4096;  // elements

HWY_EXPORT(CrossEntropyRows);

void cross_entropy_row(const CrossEntropyArgs<double>& a, int64_t row) {
  const double* x = a.logits + row * a.classes;
  double* d = a.d_logits == nullptr ? nullptr : a.d_logits + row * a.classes;
  const int64_t target = a.targets[row];
  if (target == a.ignore_index) {
    a.losses[row] = 0;
    if (d != nullptr) std::fill(d, d + a.classes, 0.0);
    return;
  }
  const double max = *std::max_element(x, x + a.classes);
  const double share = a.smoothing / static_cast<double>(a.classes);
  double sum = 0, expected = (1 - a.smoothing) * (x[target] - max);
  for (int64_t i = 0; i < a.classes; ++i) {
    sum += std::exp(x[i] - max);
    if (share > 0) expected += share * (x[i] - max);
  }
  a.losses[row] = std::log(sum) - expected;
  if (d == nullptr) return;
  for (int64_t i = 0; i < a.classes; ++i) d[i] = a.scale * (std::exp(x[i] - max) / sum - share);
  d[target] -= a.scale * (1 - a.smoothing);
}

}  // namespace

void cross_entropy(const CrossEntropyArgs<float>& args) {
  const auto run = HWY_DYNAMIC_DISPATCH(CrossEntropyRows);
  parallel_ranges(args.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(args.classes, 1)),
                  [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void cross_entropy(const CrossEntropyArgs<double>& args) {
  for (int64_t row = 0; row < args.rows; ++row) cross_entropy_row(args, row);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
