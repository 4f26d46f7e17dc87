#include "multihead/core/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace multihead {
namespace {

constexpr int64_t kSmallBlock = BlockGroup::kSize,
                  kSuper = 256;  // numbers in a block; in one of the K formats

template <class T>
T read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// One number after the other.
template <class Stored>
void decode_plain(const uint8_t* from, int64_t blocks, float* to) {
  for (int64_t i = 0; i < blocks; ++i) {
    to[i] = static_cast<float>(read<Stored>(from + i * static_cast<int64_t>(sizeof(Stored))));
  }
}

template <class Stored>
void encode_plain(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t i = 0; i < blocks; ++i) {
    write(to + i * static_cast<int64_t>(sizeof(Stored)), static_cast<Stored>(from[i]));
  }
}

template <BlockGroup (*kGroup)(const uint8_t*, int64_t), int64_t kGroups, int64_t kBytes>
void decode_groups(const uint8_t* from, int64_t blocks, float* to) {
  for (; blocks > 0; --blocks, from += kBytes) {
    for (int64_t i = 0; i < kGroups; ++i, to += kSmallBlock) {
      const BlockGroup g = kGroup(from, i);
      const auto scale = static_cast<float>(g.scale);
      const auto min = static_cast<float>(g.min);
      for (int64_t k = 0; k < kSmallBlock; ++k) {
        const int64_t half = k / (kSmallBlock / 2);
        const float d = scale * static_cast<float>(g.factors[half]),
                    m = min * static_cast<float>(g.min_factors[half]);
        to[k] = d * static_cast<float>(g.values[k] - g.offset) - m;
      }
    }
  }
}

constexpr int64_t nibble_bytes(bool has_min, bool has_fifth) {
  return 2 + 2 * has_min + 4 * has_fifth + kSmallBlock / 2;
}

// A scale, perhaps a minimum, perhaps a fifth bit of each number, and four bits of each, those of the first
// half low.
template <bool kMin, bool kFifth>
BlockGroup nibbles(const uint8_t* from, int64_t) {
  constexpr int64_t kHalf = kSmallBlock / 2;
  BlockGroup g;
  g.scale = read<Float16>(from), from += 2;
  if (kMin) g.min = read<Float16>(from), g.min_factors[0] = g.min_factors[1] = -1, from += 2;
  if (!kMin) g.offset = kFifth ? 16 : 8;
  uint32_t fifth = 0;
  if (kFifth) fifth = read<uint32_t>(from), from += 4;
  for (int64_t k = 0; k < kSmallBlock; ++k) {
    const int four = k < kHalf ? from[k] & 15 : from[k - kHalf] >> 4;
    g.values[k] = static_cast<int8_t>(four | static_cast<int>(fifth >> k & 1) << 4);
  }
  return g;
}

float inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

// Four bits, rounded half up in T.
template <class T>
void put_nibbles(const float* from, T minimum, float scale, T half_step, uint8_t* to) {
  const T factor = inverse(scale);
  const auto four = [&](float x) {
    return static_cast<int>(std::clamp((x - minimum) * factor + half_step, T{0}, T{15}));
  };
  for (int64_t i = 0; i < kSmallBlock / 2; ++i)
    to[i] = static_cast<uint8_t>(four(from[i]) | four(from[i + kSmallBlock / 2]) << 4);
}

// The number of largest magnitude is -8 steps.
void encode_q4_0(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmallBlock, to += nibble_bytes(false, false)) {
    const float scale = *std::max_element(from, from + kSmallBlock, [](float x, float y) {
      return std::fabs(x) < std::fabs(y);
    }) / -8;
    write(to, Float16(scale));
    put_nibbles<double>(from, 0, scale, 8.5, to + 2);
  }
}

void encode_q4_1(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmallBlock, to += nibble_bytes(true, false)) {
    const auto [least, most] = std::minmax_element(from, from + kSmallBlock);
    const float scale = (*most - *least) / 15;
    write(to, Float16(scale));
    write(to + 2, Float16(*least));
    put_nibbles<float>(from, *least, scale, 0.5F, to + 4);
  }
}

constexpr int64_t kQ8Bytes = 2 + kSmallBlock;

BlockGroup q8_0(const uint8_t* from, int64_t) {
  BlockGroup g;
  g.scale = read<Float16>(from);
  std::memcpy(g.values, from + 2, kSmallBlock);
  return g;
}

void encode_q8_0(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmallBlock, to += kQ8Bytes) {
    float largest = 0;
    for (int64_t i = 0; i < kSmallBlock; ++i) largest = std::max(largest, std::fabs(from[i]));
    const float scale = largest / 127, factor = inverse(scale);
    write(to, Float16(scale));
    for (int64_t i = 0; i < kSmallBlock; ++i)
      write(to + 2 + i, static_cast<int8_t>(std::round(from[i] * factor)));
  }
}

// FP4 (e2m1), doubled, with a shared power of two: OCP Microscaling Formats 1.0.
void decode_mxfp4(const uint8_t* from, int64_t blocks, float* to) {
  constexpr std::array<float, 16> kValues = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int64_t b = 0; b < blocks; ++b, from += 1 + kSmallBlock / 2, to += kSmallBlock) {
    const uint32_t exponent = from[0];
    const float scale = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    for (int64_t i = 0; i < kSmallBlock / 2; ++i) {
      to[i] = scale * kValues[from[1 + i] & 15];
      to[i + kSmallBlock / 2] = scale * kValues[from[1 + i] >> 4];
    }
  }
}

constexpr int64_t k_bytes(bool has_fifth) { return 4 + 12 + (has_fifth ? kSmallBlock : 0) + kSuper / 2; }

// Q4_K and Q5_K: scale and minimum, eight factors of each in six bits, perhaps fifth bits, and four bits, where
// two groups share their bytes.
template <bool kFifth>
BlockGroup q4_or_q5_k(const uint8_t* block, int64_t i) {
  const uint8_t *sixes = block + 4, *fifth = sixes + 12, *nibbles = fifth + (kFifth ? kSmallBlock : 0);
  const auto six = [&](int64_t part) {
    const int64_t low = i % 4 + 4 * part;
    const int bits = i < 4 ? sixes[low] & 63 : (sixes[8 + i % 4] >> (4 * part) & 15) | sixes[low] >> 6 << 4;
    return static_cast<int8_t>(bits);
  };
  BlockGroup g;
  g.scale = read<Float16>(block), g.min = read<Float16>(block + 2);
  g.factors[0] = g.factors[1] = six(0);
  g.min_factors[0] = g.min_factors[1] = six(1);
  for (int64_t k = 0; k < kSmallBlock; ++k) {
    const int four = nibbles[i / 2 * kSmallBlock + k] >> (i % 2 * 4) & 15;
    g.values[k] = static_cast<int8_t>(kFifth ? four | (fifth[k] >> i & 1) << 4 : four);
  }
  return g;
}

constexpr int64_t kQ6Bytes = kSuper / 2 + kSuper / 4 + kSuper / 16 + 2;

// Four low bits, then two high ones, then factors of 16 numbers each, then their scale.
BlockGroup q6_k(const uint8_t* block, int64_t i) {
  const uint8_t *low = block, *high = low + kSuper / 2, *factors = high + kSuper / 4;
  const int64_t section = i / 4, quarter = i % 4;  // 128 numbers, four runs of 32
  BlockGroup g;
  g.scale = read<Float16>(factors + kSuper / 16);
  std::memcpy(g.factors, factors + 2 * i, 2);
  g.offset = 32;
  for (int64_t k = 0; k < kSmallBlock; ++k) {
    const int four = low[section * 64 + quarter % 2 * 32 + k] >> (quarter / 2 * 4) & 15;
    const int two = high[section * 32 + k] >> (quarter * 2) & 3;
    g.values[k] = static_cast<int8_t>(four | two << 4);
  }
  return g;
}

// Factors and minima's factors of 16 numbers in four bits each, two bits of each number, scale and minimum.
constexpr int64_t kQ2Bytes = kSuper / 16 + kSuper / 4 + 4;

BlockGroup q2_k(const uint8_t* block, int64_t i) {
  const uint8_t *factors = block + 2 * i, *twos = block + kSuper / 16 + i / 4 * kSmallBlock,
                *scales = block + kSuper / 16 + kSuper / 4;
  BlockGroup g;
  g.scale = read<Float16>(scales), g.min = read<Float16>(scales + 2);
  for (int64_t half = 0; half < 2; ++half) {
    g.factors[half] = static_cast<int8_t>(factors[half] & 15);
    g.min_factors[half] = static_cast<int8_t>(factors[half] >> 4);
  }
  for (int64_t k = 0; k < kSmallBlock; ++k) g.values[k] = static_cast<int8_t>(twos[k] >> (i % 4 * 2) & 3);
  return g;
}

// Third bits, two low ones, factors of 16 numbers in six bits each, their scale.
constexpr int64_t kQ3Bytes = kSuper / 8 + kSuper / 4 + 12 + 2;

BlockGroup q3_k(const uint8_t* block, int64_t i) {
  const uint8_t *third = block, *twos = third + kSuper / 8 + i / 4 * kSmallBlock,
                *sixes = third + kSuper / 8 + kSuper / 4;
  BlockGroup g;
  g.scale = read<Float16>(sixes + 12);
  g.offset = 4;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t j = 2 * i + half;
    const int low = sixes[j % 8] >> (j / 8 * 4) & 15, high = sixes[8 + j % 4] >> (j / 4 * 2) & 3;
    g.factors[half] = static_cast<int8_t>((low | high << 4) - 32);
  }
  for (int64_t k = 0; k < kSmallBlock; ++k)
    g.values[k] = static_cast<int8_t>((twos[k] >> (i % 4 * 2) & 3) | (third[k] >> i & 1) << 2);
  return g;
}

// Four bits that stand for one of 16 numbers, those of the first half low.
void put_listed(const uint8_t* nibbles, BlockGroup& g) {
  constexpr int8_t kNumbers[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  for (int64_t k = 0; k < kSmallBlock / 2; ++k) {
    g.values[k] = kNumbers[nibbles[k] & 15];
    g.values[k + kSmallBlock / 2] = kNumbers[nibbles[k] >> 4];
  }
}

BlockGroup iq4_nl(const uint8_t* block, int64_t) {
  BlockGroup g;
  g.scale = read<Float16>(block);
  put_listed(block + 2, g);
  return g;
}

// Scale, two high and four low bits of the factors of 32 numbers, four bits of each.
constexpr int64_t kIq4Bytes = 2 + 2 + 4 + kSuper / 2;

BlockGroup iq4_xs(const uint8_t* block, int64_t i) {
  BlockGroup g;
  g.scale = read<Float16>(block);
  const int high = read<uint16_t>(block + 2) >> (2 * i) & 3, low = block[4 + i / 2] >> (i % 2 * 4) & 15;
  g.factors[0] = g.factors[1] = static_cast<int8_t>((low | high << 4) - 32);
  put_listed(block + 8 + i * (kSmallBlock / 2), g);
  return g;
}

// Digits of base 3, less 1: 240 numbers five to a byte, in two runs of bytes, 16 four to a byte; their scale.
constexpr int64_t kTernaryBytes = 48 + 4 + 2;

BlockGroup tq1_0(const uint8_t* block, int64_t i) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  const auto digit = [&](int64_t begin, int64_t bytes, int64_t n) {  // byte · 3^digit / 256 begins with it
    const auto fraction = static_cast<uint8_t>(block[begin + n % bytes] * kPowers[n / bytes]);
    return static_cast<int8_t>((fraction * 3 >> 8) - 1);
  };
  BlockGroup g;
  g.scale = read<Float16>(block + 48 + 4);
  for (int64_t k = 0; k < kSmallBlock; ++k) {
    const int64_t n = i * kSmallBlock + k;
    g.values[k] = n < 160 ? digit(0, 32, n) : n < 240 ? digit(32, 16, n - 160) : digit(48, 4, n - 240);
  }
  return g;
}

// Two bits of each number, four groups in 32 bytes, and their scale.
BlockGroup tq2_0(const uint8_t* block, int64_t i) {
  BlockGroup g;
  g.scale = read<Float16>(block + kSuper / 4);
  for (int64_t k = 0; k < kSmallBlock; ++k) {
    const int two = block[i / 4 * kSmallBlock + k] >> (i % 4 * 2) & 3;
    g.values[k] = static_cast<int8_t>(two - 1);
  }
  return g;
}

// The row of a format of groups.
template <BlockGroup (*kGroup)(const uint8_t*, int64_t), int64_t kBlock, int64_t kBytes>
BlockFormat in_groups(uint32_t id, const char* name, const char* packed_as,
                      void (*encode)(const float*, int64_t, uint8_t*) = nullptr, int64_t file_type = 0) {
  return {id,     name,      kBlock, kBytes,   decode_groups<kGroup, kBlock / kSmallBlock, kBytes>,
          kGroup, packed_as, encode, file_type};
}

template <class Stored>
BlockFormat plain(uint32_t id, const char* name, const char* packed_as, int64_t file_type) {
  return {id,       name, 1, sizeof(Stored), decode_plain<Stored>, nullptr, packed_as, encode_plain<Stored>,
          file_type};
}

}  // namespace

const std::vector<BlockFormat>& block_formats() {
  static const std::vector<BlockFormat> formats = {
      plain<float>(0, "F32", "", 0),
      plain<Float16>(1, "F16", "f16", 1),
      in_groups<nibbles<false, false>, kSmallBlock, nibble_bytes(false, false)>(2, "Q4_0", "q4", encode_q4_0,
                                                                                2),
      in_groups<nibbles<true, false>, kSmallBlock, nibble_bytes(true, false)>(3, "Q4_1", "q4", encode_q4_1,
                                                                              3),
      in_groups<nibbles<false, true>, kSmallBlock, nibble_bytes(false, true)>(6, "Q5_0", "q5"),
      in_groups<nibbles<true, true>, kSmallBlock, nibble_bytes(true, true)>(7, "Q5_1", "q5"),
      in_groups<q8_0, kSmallBlock, kQ8Bytes>(8, "Q8_0", "q8", encode_q8_0, 7),
      in_groups<q2_k, kSuper, kQ2Bytes>(10, "Q2_K", ""),
      in_groups<q3_k, kSuper, kQ3Bytes>(11, "Q3_K", "q6_k"),
      in_groups<q4_or_q5_k<false>, kSuper, k_bytes(false)>(12, "Q4_K", "q4_k"),
      in_groups<q4_or_q5_k<true>, kSuper, k_bytes(true)>(13, "Q5_K", "q5_k"),
      in_groups<q6_k, kSuper, kQ6Bytes>(14, "Q6_K", "q6_k"),
      in_groups<iq4_nl, kSmallBlock, nibble_bytes(false, false)>(20, "IQ4_NL", "q8"),
      in_groups<iq4_xs, kSuper, kIq4Bytes>(23, "IQ4_XS", ""),
      plain<BFloat16>(30, "BF16", "", 32),
      in_groups<tq1_0, kSuper, kTernaryBytes>(34, "TQ1_0", "q8"),
      in_groups<tq2_0, kSuper, kSuper / 4 + 2>(35, "TQ2_0", "q8"),
      {39, "MXFP4", kSmallBlock, 1 + kSmallBlock / 2, decode_mxfp4},
  };
  return formats;
}

}  // namespace multihead
