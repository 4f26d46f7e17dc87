// The shards of a step: which rank has which, and the one order in which their sums are formed.
#pragma once

#include <cstdint>
#include <vector>

namespace multihead::train {

/// A binary tree over the shards 0 … S-1 that depends on S alone: [begin, end) is the sum of [begin, mid) and
/// [mid, end), mid - begin being the largest power of two below end - begin. Rank r of R has the shards
/// [S r / R, S (r+1) / R).
class ShardTree {
 public:
  struct Node {
    int64_t begin = 0, end = 0;
    int left = -1, right = -1;          ///< children; -1: a leaf, one shard
    int first_rank = 0, last_rank = 0;  ///< ranks with shards in it
    /// The rank that has each slice of the sum. A node's holder is one of its children's, so that each
    /// slice of each node is one message at most, and the root's slice k lies on rank k.
    std::vector<int> holder = {};
    bool is_leaf() const { return left < 0; }
    bool is_local() const { return first_rank == last_rank; }
  };

  /// Throws ValueError unless 1 <= ranks <= shards.
  ShardTree(int64_t shards, int ranks);

  int64_t shards() const { return shards_; }
  /// Children before parents; the last is the root.
  const std::vector<Node>& nodes() const { return nodes_; }
  int64_t first_shard(int rank) const;
  /// Adds values of all shards in the tree's order.
  double sum(const std::vector<double>& values) const;

 private:
  int build(int64_t begin, int64_t end);
  void place(int node, const std::vector<int>& holder);
  int rank_of(int64_t shard) const;

  int64_t shards_;
  int ranks_;
  std::vector<Node> nodes_;
};

}  // namespace multihead::train
