// Sequences of which each rank of a group has its rows.
#pragma once

#include "multihead/distributed/group.h"
#include "multihead/ops/attention/ring/shards.h"

namespace multihead {

/// While it is alive, on this thread, tensors [B, T', ...] hold this rank's rows of sequences that the group
/// has cut: attention() and attention_packed() are ring_attention(), and dropout() draws for each element
/// what it would draw in the whole. What takes a row by itself needs nothing; models take the rows'
/// positions from here. Attention to anything but the sequence itself is refused. In a group of one nothing
/// changes. The group lives until the backward.
class ContextScope {
 public:
  ContextScope(distributed::Group& group, const SequenceShards& shards);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  /// Null: sequences are whole.
  static const ContextScope* current();

  distributed::Group& group() const { return group_; }
  const SequenceShards& shards() const { return shards_; }
  /// This rank's rows of `whole`, along this axis.
  Tensor take(const Tensor& whole, int axis) const { return shards_.take(whole, axis, group_.rank()); }
  /// The positions of this rank's rows: i64 [T'].
  Tensor positions() const { return shards_.positions(group_.rank()); }

 private:
  distributed::Group& group_;
  SequenceShards shards_;
  const ContextScope* outer_;
};

namespace detail {

/// While it is alive, on this thread, there is no scope.
class NoContextParallel {
 public:
  NoContextParallel();
  ~NoContextParallel();
  NoContextParallel(const NoContextParallel&) = delete;
  NoContextParallel& operator=(const NoContextParallel&) = delete;

 private:
  const ContextScope* outer_;
};

}  // namespace detail
}  // namespace multihead
