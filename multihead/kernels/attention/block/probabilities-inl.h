// From one row's scores to its probabilities, for what looks inside attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {

/// row.score, as reference_scores() left it, becomes the probabilities of a row of head h, 0 where excluded,
/// by the row's own maximum and sum, with the head's sink if there are any; row.sink becomes that one's. False
/// if the row sees no key: it then holds what the policy for such rows says.
template <class T>
bool to_probabilities(const AttentionProblem& p, const T* sinks, int64_t b, int64_t h, ReferenceRow<T>& row) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const int64_t n = p.key_count(b);
  T max = -kInf;
  bool empty = true;
  for (int64_t j = 0; j < n; ++j) {
    max = std::max(max, row.score[j]);
    empty = empty && row.score[j] == -kInf;
  }
  if (empty) {
    const T weight = p.empty_row == EmptyRow::uniform ? T{1} / static_cast<T>(n)
                     : p.empty_row == EmptyRow::nan   ? std::numeric_limits<T>::quiet_NaN()
                                                      : T{0};
    std::fill_n(row.score.data(), n, weight);
    row.sink = 0;
    return false;
  }
  if (sinks) max = std::max(max, sinks[h]);
  const double sink = sinks ? std::exp(double{sinks[h]} - double{max}) : 0.0;
  double sum = sink;
  for (int64_t j = 0; j < n; ++j) {
    row.score[j] = row.keep[j] ? std::exp(row.score[j] - max) : T{0};
    sum += double{row.score[j]};
  }
  for (int64_t j = 0; j < n; ++j) row.score[j] = static_cast<T>(double{row.score[j]} / sum);
  row.sink = static_cast<T>(sink / sum);
  return true;
}

}  // namespace multihead::kernels
