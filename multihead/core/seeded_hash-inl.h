// A hash for keys that a file chooses. Private to the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace multihead::detail {

/// Murmur's mix of eight bytes at a time, from a number that no file can know: no file can be made of keys
/// that meet in one place.
inline uint32_t seeded_hash(std::string_view key) {
  static const uint64_t seed = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  uint64_t hash = seed ^ key.size();
  for (size_t at = 0; at < key.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, key.data() + at, std::min<size_t>(8, key.size() - at));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  hash *= 0xD6E8FEB86659FD93u;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace multihead::detail
