// The softmax of a row in the backward pass by its log-sum-exp, and what that says of rows whose scores are large.
// Internal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "multihead/kernels/attention/attention.h"

namespace multihead::kernels {

/// What a row's log-sum-exp, which is known to its ulp alone, has above the largest score `top`: the logarithm of `sum`,
/// the sum of e^(score - top), but where `lse` says more than its rounding (`epsilon`, of its type) explains. It does
/// with a sink, which the scores do not show.
inline double log_sum_above(double lse, double top, double sum, double epsilon) {
  const double given = lse - top, own = std::log(sum);
  return given > own + 8 * epsilon * std::abs(lse) ? given : own;
}

/// e^(score - top - rest): by the log-sum-exp, or where that is large by the row's own maximum and sum. `is_part`: the
/// scores are not all of those that `lse` is of.
template <class T>
struct RowSoftmax {
  T top = 0, rest;
  RowSoftmax(const T* score, const uint8_t* keep, int64_t keys, T lse, bool is_part) : rest(lse) {
    if (is_part || !(std::abs(lse) > kLargeLogSum)) return;
    T most = std::numeric_limits<T>::lowest();
    for (int64_t j = 0; j < keys; ++j)
      if (keep[j]) most = std::max(most, score[j]);
    double sum = 0;
    for (int64_t j = 0; j < keys; ++j)
      if (keep[j]) sum += std::exp(static_cast<double>(score[j]) - static_cast<double>(most));
    if (!(sum > 0)) return;
    constexpr double kEpsilon = std::numeric_limits<T>::epsilon();
    top = most;
    rest = static_cast<T>(log_sum_above(static_cast<double>(lse), static_cast<double>(most), sum, kEpsilon));
  }
  T operator()(T score) const { return std::exp(score - top - rest); }
};

}  // namespace multihead::kernels
