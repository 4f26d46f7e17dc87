// The rows of a corpus that are most like a query, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/embed/prompts.h"

namespace multihead::embed {

/// Rows with few numbers other than 0, row r those at [ends[r], ends[r + 1]), by increasing column.
struct SparseRows {
  Tensor ends;     ///< [n + 1] i64, from 0
  Tensor columns;  ///< [numbers] i64
  Tensor values;   ///< [numbers] f32
  int64_t width = 0;

  int64_t size() const { return ends.numel() - 1; }
};

/// Texts of several vectors each, text i those of the rows [ends[i], ends[i + 1]).
struct MultiVectors {
  Tensor vectors;  ///< [N, dim] f32
  Tensor ends;     ///< [n + 1] i64, from 0 to N

  int64_t size() const { return ends.numel() - 1; }
};

struct Match {
  int64_t row = 0;
  float score = 0;
};
/// Rows [q, dim] and [n, dim] of f32 -> how alike they are, [q, n]. A row of zeros has a cosine of 0.
Tensor similarities(const Tensor& queries, const Tensor& rows, Similarity by);

/// The `count` rows of `corpus` [n, dim] that are most like each of `queries` [q, dim], the nearest first, of
/// equal ones the first. f32. Throws ValueError naming a row that holds NaN or Inf, which has no place in an
/// order, and where finite rows give scores that are not.
std::vector<std::vector<Match>> nearest(const Tensor& queries, const Tensor& corpus, int64_t count,
                                        Similarity by = Similarity::dot);
/// The same of sparse rows; rows that share no column with a query have a product of 0.
std::vector<std::vector<Match>> nearest(const SparseRows& queries, const SparseRows& corpus, int64_t count,
                                        Similarity by = Similarity::dot);
/// The same by MaxSim (Khattab & Zaharia 2020): the sum over a query's vectors of the largest inner product
/// with one of the text's. A text without vectors comes last, with -inf.
std::vector<std::vector<Match>> nearest(const MultiVectors& queries, const MultiVectors& corpus,
                                        int64_t count);

}  // namespace multihead::embed
