#include "multihead/ops/attention/ring/shards.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

// Without gradient.
Tensor rows_of(const Tensor& x, int axis, const SequenceShards::Rows& rows) {
  return slice(x.detach(), axis, rows.begin, rows.end);
}

}  // namespace

SequenceShards::SequenceShards(int64_t length, int ranks, int chunks_per_rank)
    : length_(length), ranks_(ranks) {
  MH_CHECK(length >= 0 && ranks > 0 && chunks_per_rank > 0, ValueError,
           "SequenceShards: length must be >= 0, ranks and chunks_per_rank > 0, got ", length, ", ", ranks,
           " and ", chunks_per_rank);
  constexpr int64_t kBlock = kernels::attention_key_block;
  const int64_t chunks = int64_t{ranks} * chunks_per_rank, blocks = (length + kBlock - 1) / kBlock;
  chunk_rows_ = std::max<int64_t>(1, (blocks + chunks - 1) / chunks) * kBlock;
}

int SequenceShards::chunks() const { return static_cast<int>((length_ + chunk_rows_ - 1) / chunk_rows_); }

SequenceShards::Rows SequenceShards::chunk(int number) const {
  return {std::min(length_, number * chunk_rows_), std::min(length_, (number + 1) * chunk_rows_)};
}

int SequenceShards::owner(int chunk) const {
  const int place = chunk % ranks_;
  return chunk / ranks_ % 2 == 0 ? place : ranks_ - 1 - place;
}

std::vector<int> SequenceShards::chunks_of(int rank) const {
  std::vector<int> numbers;
  for (int round = 0; round * ranks_ < chunks(); ++round) {
    const int c = round * ranks_ + (round % 2 == 0 ? rank : ranks_ - 1 - rank);
    if (c < chunks()) numbers.push_back(c);
  }
  return numbers;
}

int64_t SequenceShards::rows(int rank) const {
  int64_t count = 0;
  for (const int c : chunks_of(rank)) count += chunk(c).count();
  return count;
}

// The rank's chunks before it are whole.
SequenceShards::Rows SequenceShards::own_rows(int number) const {
  const int64_t begin = number / ranks_ * chunk_rows_;
  return {begin, begin + chunk(number).count()};
}

Tensor SequenceShards::positions(int rank) const { return take(Tensor::arange(length_), 0, rank); }

Tensor SequenceShards::take(const Tensor& whole, int axis, int rank) const {
  MH_CHECK(whole.size(axis) == length_, ShapeError, "SequenceShards: axis ", axis, " must have ", length_,
           " rows, got ", whole.shape());
  Shape shape = whole.shape();
  shape[axis] = rows(rank);
  const Tensor own = Tensor::empty(shape, whole.dtype());
  for (const int c : chunks_of(rank)) {
    rows_of(own, axis, own_rows(c)).copy_from(rows_of(whole, axis, chunk(c)));
  }
  return own;
}

void SequenceShards::put(const Tensor& rows, int axis, int rank, const Tensor& whole) const {
  MH_CHECK(whole.size(axis) == length_ && rows.size(axis) == this->rows(rank), ShapeError,
           "SequenceShards: axis ", axis, " must have ", length_, " rows, of which rank ", rank, " has ",
           this->rows(rank), ", got ", whole.shape(), " and ", rows.shape());
  for (const int c : chunks_of(rank)) {
    rows_of(whole, axis, chunk(c)).copy_from(rows_of(rows, axis, own_rows(c)));
  }
}

}  // namespace multihead
