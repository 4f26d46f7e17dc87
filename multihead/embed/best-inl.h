// What searches share. Private to embed/.
#pragma once

#include <algorithm>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/nearest.h"

namespace multihead::embed::detail {

/// Keeps the `count` best, best first.
inline void keep_best(std::vector<Match>& list, int64_t count) {
  const auto is_better = [](const Match& a, const Match& b) {
    return a.score > b.score || (a.score == b.score && a.row < b.row);
  };
  const auto kept = std::min(std::ssize(list), count);
  std::partial_sort(list.begin(), list.begin() + kept, list.end(), is_better);
  list.resize(static_cast<size_t>(kept));
}

/// Adds to each query's list the rows from `begin` on, whose scores are `scores` [queries, rows], and keeps
/// the best.
inline void add_scores(std::vector<std::vector<Match>>& best, const Tensor& scores, int64_t begin,
                       int64_t count) {
  const int64_t rows = scores.size(1);
  parallel_for(std::ssize(best), [&](int64_t q, int) {
    std::vector<Match>& list = best[static_cast<size_t>(q)];
    const float* score = scores.data<float>() + q * rows;
    for (int64_t i = 0; i < rows; ++i) list.push_back({begin + i, score[i]});
    keep_best(list, count);
  });
}

/// Throws ValueError naming the first row of `who` that holds NaN or Inf.
void check_finite(const char* who, const Tensor& rows);
void check_count(int64_t count);

/// The similarity of two rows by what they share, an inner product, and the squared length of each (by manhattan:
/// the sum over columns of |x| + |y| - |x - y|, and the sums of magnitudes).
double score_of(Similarity by, double shared, double query_size, double size);

}  // namespace multihead::embed::detail
