// Vectors in a byte or a bit for each number, to search more of them than fit as f32.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"
#include "multihead/embed/nearest.h"

namespace multihead::embed {

/// What is compared first: signed bytes, by inner products, or signs, by the number of them that are equal.
enum class IndexKind { int8, binary };
constexpr auto enum_words(IndexKind) { return std::to_array<std::string_view>({"int8", "binary"}); }

/// Rows of numbers rounded to 8 bits, each row scaled by its largest, and of a binary index their signs
/// besides. The best rows are found by what the kind compares, `rescored` times as many as are wanted; their
/// order and scores are inner products of the query itself with the rounded rows.
class VectorIndex {
 public:
  /// rows [n, dim] f32. Memory: n·(dim + 4) bytes, and n·dim / 8 if binary. Throws ShapeError; ValueError
  /// (NaN or Inf).
  VectorIndex(const Tensor& rows, IndexKind kind);

  /// As nearest(queries, rows, count), but for the rounding. Throws ShapeError, ValueError.
  std::vector<std::vector<Match>> nearest(const Tensor& queries, int64_t count, int64_t rescored = 4) const;

  int64_t size() const { return std::ssize(scales_); }
  int64_t dim() const { return dim_; }
  IndexKind kind() const { return kind_; }

 private:
  void scan(const float* query, std::vector<Match>& found, int64_t count) const;
  float score(const float* query, int64_t row) const;

  IndexKind kind_;
  int64_t dim_ = 0;
  std::vector<int8_t> codes_;    ///< [n, dim]
  std::vector<float> scales_;    ///< [n]
  std::vector<uint64_t> signs_;  ///< [n, dim / 64 rounded up]
};

}  // namespace multihead::embed
