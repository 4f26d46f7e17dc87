#include "multihead/train/parallel/shard_tree.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

TEST(ShardTreeTest, TheOrderDependsOnTheShardsAlone) {
  std::vector<double> values;
  for (int i = 0; i < 13; ++i) values.push_back(std::sin(i) * std::pow(10, i % 7));
  const double sum = ShardTree(13, 1).sum(values);
  for (int ranks = 2; ranks <= 13; ++ranks) EXPECT_EQ(ShardTree(13, ranks).sum(values), sum);
  // ((0 1)(2 3))((4 5)(6)) for seven.
  const std::vector<double> v(values.begin(), values.begin() + 7);
  EXPECT_EQ(ShardTree(7, 3).sum(v), ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]));
}

TEST(ShardTreeTest, EveryRankHasShardsAndEverySliceAHolder) {
  for (int64_t shards = 1; shards <= 17; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      const ShardTree tree(shards, ranks);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_LT(tree.first_shard(rank), tree.first_shard(rank + 1));
      EXPECT_EQ(tree.first_shard(ranks), shards);
      for (const ShardTree::Node& node : tree.nodes()) {
        ASSERT_EQ(node.holder.size(), static_cast<size_t>(ranks));
        for (size_t slice = 0; slice < node.holder.size(); ++slice) {
          EXPECT_GE(node.holder[slice], node.first_rank);
          EXPECT_LE(node.holder[slice], node.last_rank);
          const bool is_root = &node == &tree.nodes().back();
          EXPECT_TRUE(!is_root || node.holder[slice] == static_cast<int>(slice));
          if (node.is_leaf()) continue;
          const int left = tree.nodes()[static_cast<size_t>(node.left)].holder[slice],
                    right = tree.nodes()[static_cast<size_t>(node.right)].holder[slice];
          EXPECT_TRUE(node.holder[slice] == left || node.holder[slice] == right);
        }
      }
    }
  }
}

TEST(ShardTreeTest, MoreRanksThanShardsAreRefused) {
  EXPECT_THROW(ShardTree(3, 4), ValueError);
  EXPECT_THROW(ShardTree(0, 1), ValueError);
}

}  // namespace
}  // namespace multihead::train
