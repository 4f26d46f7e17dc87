#include "multihead/train/parallel/shard_tree.h"

#include <bit>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/distributed/collectives.h"

namespace multihead::train {

ShardTree::ShardTree(int64_t shards, int ranks) : shards_(shards), ranks_(ranks) {
  MH_CHECK(shards >= 1 && ranks >= 1, ValueError, "train: shards and ranks must be positive, got ", shards,
           " and ", ranks);
  MH_CHECK(ranks <= shards, ValueError, "train: ", ranks, " ranks cannot share ", shards,
           shards == 1 ? " shard" : " shards", "; start fewer, or choose --shards ", ranks,
           " or more, which is another run with other weights");
  const int root = build(0, shards);
  std::vector<int> own(static_cast<size_t>(ranks));
  std::iota(own.begin(), own.end(), 0);
  place(root, own);
}

int64_t ShardTree::first_shard(int rank) const { return distributed::share_begin(shards_, ranks_, rank); }

int ShardTree::rank_of(int64_t shard) const {
  int rank = static_cast<int>(shard * ranks_ / shards_);
  while (rank + 1 < ranks_ && first_shard(rank + 1) <= shard) ++rank;
  return rank;
}

int ShardTree::build(int64_t begin, int64_t end) {
  Node node{.begin = begin, .end = end, .first_rank = rank_of(begin), .last_rank = rank_of(end - 1)};
  if (end - begin > 1) {
    const auto half = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(end - begin - 1)));
    node.left = build(begin, begin + half);
    node.right = build(begin + half, end);
  }
  nodes_.push_back(node);
  return static_cast<int>(nodes_.size()) - 1;
}

void ShardTree::place(int index, const std::vector<int>& holder) {
  Node& node = nodes_[static_cast<size_t>(index)];
  node.holder = holder;
  if (node.is_leaf()) return;
  for (const int child : {node.left, node.right}) {
    const Node& below = nodes_[static_cast<size_t>(child)];
    const int ranks = below.last_rank - below.first_rank + 1;
    std::vector<int> theirs = holder;
    for (size_t slice = 0; slice < theirs.size(); ++slice) {
      const bool inside = theirs[slice] >= below.first_rank && theirs[slice] <= below.last_rank;
      if (!inside) theirs[slice] = below.first_rank + static_cast<int>(slice % static_cast<size_t>(ranks));
    }
    place(child, theirs);
  }
}

double ShardTree::sum(const std::vector<double>& values) const {
  std::vector<double> sums(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    sums[i] = node.is_leaf() ? values[static_cast<size_t>(node.begin)]
                             : sums[static_cast<size_t>(node.left)] + sums[static_cast<size_t>(node.right)];
  }
  return sums.back();
}

}  // namespace multihead::train
