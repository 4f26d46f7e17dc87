// Blocks of numbers as files store them, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "multihead/core/blocks.h"

namespace multihead::testing {

/// `count` blocks of random bytes that decode to numbers below 1000; the extreme ones have as many bits as that
/// leaves room for.
inline std::vector<uint8_t> stored_blocks(const BlockFormat& format, int64_t count, bool extreme = false) {
  std::mt19937 random(5);
  std::vector<uint8_t> all;
  std::vector<float> numbers(static_cast<size_t>(format.block));
  std::vector<uint8_t> block(static_cast<size_t>(format.bytes));
  const auto is_good = [&] {
    format.decode(block.data(), 1, numbers.data());
    return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::abs(x) < 1000; });
  };
  for (int64_t i = 0; i < count; ++i) {
    do {
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(random());
    } while (!is_good());
    for (size_t j = 0; extreme && j < block.size(); ++j) {
      const uint8_t before = block[j];
      block[j] = 0xff;
      if (!is_good()) block[j] = before;
    }
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

}  // namespace multihead::testing
