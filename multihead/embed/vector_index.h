// Vectors in a byte or a bit for each number, to search more of them than fit as f32.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"
#include "multihead/embed/nearest.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::embed {

/// What is compared first: signed bytes, by inner products, or signs, by the number of them that are equal.
enum class IndexKind { int8, binary };
constexpr auto enum_words(IndexKind) { return std::to_array<std::string_view>({"int8", "binary"}); }

/// Rows of numbers rounded to 8 bits, each row scaled by its largest, and of a binary index their signs
/// besides. The best rows are found by what the kind compares, `rescored` times as many as are wanted; their
/// order and scores are the similarities of the query itself and the rounded rows. The same bits on every
/// machine, alone and among other queries.
class VectorIndex {
 public:
  /// rows [n, dim] f32. Memory: about n·(dim + 12) bytes, and n·dim / 8 if binary. Throws ShapeError;
  /// ValueError (NaN or Inf, more columns than int8 products can sum).
  VectorIndex(const Tensor& rows, IndexKind kind);

  /// As nearest(queries, rows, count, by), but for the rounding. Throws ShapeError, ValueError (manhattan
  /// distances, which take more than products).
  std::vector<std::vector<Match>> nearest(const Tensor& queries, int64_t count,
                                          Similarity by = Similarity::dot, int64_t rescored = 4) const;

  int64_t size() const { return size_; }
  int64_t dim() const { return dim_; }
  IndexKind kind() const { return kind_; }

 private:
  using Matches = std::vector<std::vector<Match>>;
  void scan_bytes(const Tensor& queries, Matches& best, int64_t count, Similarity by) const;
  void scan_signs(const float* query, std::vector<Match>& found, int64_t count) const;
  /// use(column, code) of each column of a rounded row.
  template <class Use>
  void each_code(int64_t row, Use&& use) const;
  float scale_of(int64_t row) const;
  /// `square`: the query's squared length.
  float score(const float* query, double square, int64_t row, Similarity by) const;

  IndexKind kind_;
  int64_t dim_ = 0, size_ = 0;
  std::vector<nn::PackedLinear> parts_;  ///< the rows, some in each
  std::vector<float> squares_;           ///< the rounded rows' squared lengths
  std::vector<uint64_t> signs_;          ///< [n, dim / 64 rounded up]
};

}  // namespace multihead::embed
