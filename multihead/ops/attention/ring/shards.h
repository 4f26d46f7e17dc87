// Which rows of a long sequence each rank of a group has.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// A sequence of `length` rows cut into chunks that are dealt to the ranks there and back: with two chunks a
/// rank, rank r of R has chunks r and 2R - 1 - r, so that under a causal mask all have the same work. Chunks
/// begin at multiples of kernels::attention_key_block and have one size, except the last. More chunks a rank
/// take less memory on the way and wait less for each other.
///
/// A rank's rows are its chunks, concatenated in ascending order.
class SequenceShards {
 public:
  /// Rows [begin, end) of the sequence.
  struct Rows {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
  };

  /// Throws ValueError unless length >= 0, ranks > 0 and chunks_per_rank > 0.
  SequenceShards(int64_t length, int ranks, int chunks_per_rank = 4);

  int64_t length() const { return length_; }
  int ranks() const { return ranks_; }
  int chunks() const;
  Rows chunk(int number) const;
  int owner(int chunk) const;
  /// The chunks of a rank.
  std::vector<int> chunks_of(int rank) const;
  /// How many rows a rank has.
  int64_t rows(int rank) const;
  /// Where a chunk lies among its owner's rows.
  Rows own_rows(int chunk) const;

  /// Absolute positions of a rank's rows: i64 [rows].
  Tensor positions(int rank) const;
  /// A copy of a rank's rows of `whole`, along this axis: of tokens, targets, cosines and sines of a rotary
  /// table … No gradient. Throws ShapeError unless the axis has `length` rows.
  Tensor take(const Tensor& whole, int axis, int rank) const;
  /// The other way round: a rank's rows are copied to their places in `whole`.
  void put(const Tensor& rows, int axis, int rank, const Tensor& whole) const;

 private:
  int64_t length_ = 0, chunk_rows_ = 0;
  int ranks_ = 1;
};

}  // namespace multihead
