#include "multihead/train/data/pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

std::vector<TokenPair> pairs_of(const std::vector<std::pair<size_t, size_t>>& sizes) {
  std::vector<TokenPair> pairs;
  for (const auto& [source, target] : sizes) {
    pairs.push_back({std::vector<int32_t>(source, 5), std::vector<int32_t>(target, 6)});
    pairs.back().source.back() = pairs.back().target.back() = 1;
  }
  return pairs;
}

std::vector<TokenPair> many() {
  std::vector<std::pair<size_t, size_t>> sizes;
  for (size_t i = 0; i < 211; ++i) sizes.emplace_back(1 + i * 7 % 23, 1 + i * 5 % 19);
  return pairs_of(sizes);
}

TEST(PairBatchesTest, EveryEpochHasEveryPairOnceInBatchesOfTheSizeAskedFor) {
  const auto pairs = many();
  const PairBatches batches(pairs, {.batch_tokens = 96, .bucket = 4, .seed = 3});
  std::vector<std::vector<int64_t>> first_epoch;
  int64_t repeated = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < batches.batches_per_epoch(); ++i) {
      const auto rows = batches.rows(epoch * batches.batches_per_epoch() + i);
      ASSERT_FALSE(rows.empty());
      int64_t longest = 0, shortest = 100;
      for (const int64_t row : rows) {
        EXPECT_TRUE(seen.insert(row).second);
        longest = std::max(longest, pairs[static_cast<size_t>(row)].longest());
        shortest = std::min(shortest, pairs[static_cast<size_t>(row)].longest());
      }
      EXPECT_LE(longest * static_cast<int64_t>(rows.size()), 96);
      EXPECT_LE(longest - shortest, 7);
      if (epoch == 0) first_epoch.push_back(rows);
      if (epoch == 1) repeated += std::count(first_epoch.begin(), first_epoch.end(), rows);
    }
    EXPECT_EQ(seen.size(), pairs.size());
  }
  EXPECT_LT(repeated, batches.batches_per_epoch() / 2);  // neighbours change from epoch to epoch
  const PairBatches again(pairs, {.batch_tokens = 96, .bucket = 4, .seed = 3});
  EXPECT_EQ(again.rows(17), batches.rows(17));
  EXPECT_NE(PairBatches(pairs, {.batch_tokens = 96, .bucket = 4, .seed = 4}).rows(17), batches.rows(17));
}

TEST(PairBatchesTest, APairLongerThanTheBatchComesAlone) {
  const auto pairs = pairs_of({{40, 3}, {2, 2}, {3, 50}});
  const PairBatches batches(pairs, {.batch_tokens = 16});
  EXPECT_EQ(batches.batches_per_epoch(), 3);
  EXPECT_THROW(PairBatches({}, {}), ValueError);
  EXPECT_THROW(PairBatches(pairs, {.batch_tokens = 0}), ValueError);
}

TEST(PairBatchesTest, InputIsShiftedAndPaddingIsIgnored) {
  std::vector<TokenPair> pairs = {{{7, 8, 1}, {9, 1}}, {{7, 1}, {10, 11, 12, 1}}};
  models::Seq2SeqConfig config;
  config.pad_id = 2, config.decoder_start_id = 3, config.eos_id = 1;
  const PairBatch batch = make_pair_batch(pairs, {1, 0}, config);
  EXPECT_EQ(batch.source.tokens.to_vector<int32_t>(), (std::vector<int32_t>{7, 1, 2, 7, 8, 1}));
  EXPECT_EQ(batch.source.lengths, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(batch.input.tokens.to_vector<int32_t>(), (std::vector<int32_t>{3, 10, 11, 12, 3, 9, 2, 2}));
  EXPECT_EQ(batch.labels.to_vector<int32_t>(), (std::vector<int32_t>{10, 11, 12, 1, 9, 1, -100, -100}));
  EXPECT_EQ(batch.tokens, 6);
}

}  // namespace
}  // namespace multihead::train
