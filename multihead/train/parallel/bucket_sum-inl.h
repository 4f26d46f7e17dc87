// The sum of a part of the gradient over all shards of a step.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/distributed/group.h"
#include "multihead/train/parallel/shard_tree.h"

namespace multihead::train {

/// One bucket of a gradient on its way up the tree: first the sums of this rank's shards, then slices that
/// travel, of which the root's slice k ends on rank k. Once it is there, the rest is freed (ZeRO-2).
class BucketSum {
 public:
  /// `bounds` cut the bucket into one slice per rank; messages have the tags first_tag + slice.
  BucketSum(distributed::Group& group, const ShardTree& tree, std::vector<int64_t> bounds, int first_tag);

  /// Call it for each own shard, in ascending order; `gradient` is contiguous and becomes this object's.
  void add(int64_t shard, Tensor gradient);
  /// Sends and adds what it can without waiting. True: slice() is there, and nothing is on its way any more.
  bool advance();
  /// After advance() has returned false for a bucket with all own shards: blocks until something moves.
  void wait();
  /// This rank's slice of the sum.
  const Tensor& slice() const { return slice_; }
  /// For the next step.
  void clear();

 private:
  // One slice of the sum.
  struct Climb {
    size_t next = 0;                  // in path_
    std::map<int, float*> sums = {};  // formed with other ranks, by node
    Tensor received = {};             // what the next node waits for
    distributed::MessagePtr message = {};
  };

  bool climb(size_t slice);
  float* step_up(size_t slice, const ShardTree::Node& node);
  float* held(size_t slice, int node) const;
  void keep_slice();

  distributed::Group& group_;
  const ShardTree& tree_;
  std::vector<int64_t> bounds_;
  int first_tag_;
  std::vector<int> path_;  // nodes that this rank forms with others
  size_t next_node_ = 0;
  std::vector<Tensor> sums_;  // by node, of own shards
  std::vector<Climb> climbs_;
  std::vector<distributed::MessagePtr> sending_;
  Tensor slice_;
};

}  // namespace multihead::train
