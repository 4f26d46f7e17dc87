#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "multihead/core/memory/block_cache-inl.h"

namespace multihead {
namespace {

int64_t held(BlockCache& cache) {
  const MemoryStats stats = cache.stats();
  return stats.live_bytes + stats.cached_bytes;
}

TEST(BlockCacheTest, BlocksOfAnySizesNeverOverlapAndJoinAgain) {
  BlockCache cache;
  std::mt19937 random(1);
  struct Taken {
    MemoryBlock* block;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Taken> taken;
  const auto give = [&](size_t i) {
    const auto* data = reinterpret_cast<const unsigned char*>(taken[i].block->data);
    for (size_t at = 0; at < taken[i].bytes; at += 61) ASSERT_EQ(data[at], taken[i].mark);
    cache.give(taken[i].block);
    taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int step = 0; step < 4000; ++step) {
    if (taken.size() < 40 && random() % 3 != 0) {
      const size_t bytes = random() % (1u << (8 + random() % 14));
      MemoryBlock* block = cache.take(bytes);
      ASSERT_GE(block->bytes, bytes);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block->data) % 64, 0u);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(block->data, mark, bytes);
      taken.push_back({block, bytes, mark});
    } else if (!taken.empty()) {
      give(random() % taken.size());
    }
    if (step % 1000 == 999) cache.release();
  }
  while (!taken.empty()) give(0);
  EXPECT_EQ(cache.stats().live_bytes, 0);
  cache.release();
  EXPECT_EQ(held(cache), 0) << "all blocks have joined to whole segments";
}

TEST(BlockCacheTest, OneSizeUsesTheMemoryOfAnother) {
  BlockCache cache;
  std::vector<MemoryBlock*> blocks;
  for (const size_t size : {3u << 20, 1u << 20, 5u << 19, 7u << 18}) {
    for (size_t bytes = 0; bytes < 24u << 20; bytes += size) blocks.push_back(cache.take(size));
    for (MemoryBlock* block : blocks) cache.give(block);
    blocks.clear();
  }
  EXPECT_LE(held(cache), 42 << 20);
}

TEST(BlockCacheTest, WhatIsHeldStaysNearThePeakOfWhatWasTaken) {
  BlockCache cache;
  for (size_t size = 1 << 20; size < 200u << 20; size += size / 7) cache.give(cache.take(size));
  EXPECT_LE(held(cache), cache.stats().peak_bytes + cache.stats().peak_bytes / 8 + (18 << 20));
}

}  // namespace
}  // namespace multihead
