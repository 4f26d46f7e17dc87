// The block formats of ggml: https://github.com/ggml-org/ggml, ggml-common.h and ggml-quants.c. Every product
// and every difference is rounded to f32 by itself, as in the Python package.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/io/gguf.h"

namespace multihead::io {
namespace {

constexpr int64_t kSmall = 32, kSuper = 256;  // numbers in a block, in a block of the K formats

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

float half(const uint8_t* from) { return static_cast<float>(read<Float16>(from)); }

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

// A block of 32 numbers: a scale, perhaps a minimum, perhaps a fifth bit of each, and four bits of each,
// those of the first half low.
struct Nibbles {
  bool has_minimum, has_fifth;
  int offset;  // subtracted where there is no minimum

  static constexpr int64_t bytes(bool minimum, bool fifth) {
    return 2 + 2 * minimum + 4 * fifth + kSmall / 2;
  }
};

template <Nibbles kFormat>
void decode_nibbles(const uint8_t* from, int64_t blocks, float* to) {
  constexpr int64_t kHalf = kSmall / 2;
  for (int64_t b = 0; b < blocks; ++b, to += kSmall) {
    const float scale = half(from);
    from += 2;
    float minimum = 0;
    if constexpr (kFormat.has_minimum) minimum = half(from), from += 2;
    uint32_t fifth = 0;
    if constexpr (kFormat.has_fifth) fifth = read<uint32_t>(from), from += 4;
    for (int64_t i = 0; i < kSmall; ++i) {
      const int four = i < kHalf ? from[i] & 15 : from[i - kHalf] >> 4;
      const auto q = static_cast<float>((four | static_cast<int>(fifth >> i & 1) << 4) - kFormat.offset);
      to[i] = kFormat.has_minimum ? scale * q + minimum : scale * q;
    }
    from += kHalf;
  }
}

float inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

// Four bits, rounded half up in f64.
void put_nibbles(const float* from, float minimum, float scale, double half_step, uint8_t* to) {
  const double factor = inverse(scale);
  const auto four = [&](float x) {
    return static_cast<int>(std::clamp((static_cast<double>(x) - minimum) * factor + half_step, 0.0, 15.0));
  };
  for (int64_t i = 0; i < kSmall / 2; ++i)
    to[i] = static_cast<uint8_t>(four(from[i]) | four(from[i + kSmall / 2]) << 4);
}

// The number of largest magnitude is -8 steps.
void encode_q4_0(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmall, to += Nibbles::bytes(false, false)) {
    const float scale = *std::max_element(from, from + kSmall, [](float x, float y) {
      return std::fabs(x) < std::fabs(y);
    }) / -8;
    write(to, Float16(scale));
    put_nibbles(from, 0, scale, 8.5, to + 2);
  }
}

void encode_q4_1(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmall, to += Nibbles::bytes(true, false)) {
    const auto [least, most] = std::minmax_element(from, from + kSmall);
    const float scale = (*most - *least) / 15;
    write(to, Float16(scale));
    write(to + 2, Float16(*least));
    put_nibbles(from, *least, scale, 0.5, to + 4);
  }
}

void decode_q8_0(const uint8_t* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 2 + kSmall, to += kSmall) {
    const float scale = half(from);
    for (int64_t i = 0; i < kSmall; ++i) to[i] = static_cast<float>(read<int8_t>(from + 2 + i)) * scale;
  }
}

void encode_q8_0(const float* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kSmall, to += 2 + kSmall) {
    float largest = 0;
    for (int64_t i = 0; i < kSmall; ++i) largest = std::max(largest, std::fabs(from[i]));
    const float scale = largest / 127, factor = inverse(scale);
    write(to, Float16(scale));
    for (int64_t i = 0; i < kSmall; ++i) write(to + 2 + i, static_cast<int8_t>(std::round(from[i] * factor)));
  }
}

// FP4 (e2m1), doubled, with a shared power of two: OCP Microscaling Formats 1.0.
void decode_mxfp4(const uint8_t* from, int64_t blocks, float* to) {
  constexpr std::array<float, 16> kValues = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int64_t b = 0; b < blocks; ++b, from += 1 + kSmall / 2, to += kSmall) {
    const uint32_t exponent = from[0];
    const float scale = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    for (int64_t i = 0; i < kSmall / 2; ++i) {
      to[i] = scale * kValues[from[1 + i] & 15];
      to[i + kSmall / 2] = scale * kValues[from[1 + i] >> 4];
    }
  }
}

struct ScaleAndMinimum {
  float scale, minimum;
};

// Eight scales and eight minima of six bits in twelve bytes.
ScaleAndMinimum sixes(const uint8_t* packed, int64_t i) {
  if (i < 4) return {static_cast<float>(packed[i] & 63), static_cast<float>(packed[i + 4] & 63)};
  return {static_cast<float>((packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4),
          static_cast<float>((packed[i + 4] >> 4) | (packed[i] >> 6) << 4)};
}

// Q4_K and Q5_K: eight groups of 32, each with a scale and a minimum; two groups share their bytes.
template <bool kFifth>
void decode_k(const uint8_t* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b) {
    const float scale = half(from), minimum = half(from + 2);
    const uint8_t *packed = from + 4, *fifth = from + 16, *nibbles = fifth + (kFifth ? kSmall : 0);
    for (int64_t group = 0; group < kSuper / kSmall; ++group, to += kSmall) {
      const ScaleAndMinimum own = sixes(packed, group);
      const float d = scale * own.scale, m = minimum * own.minimum;
      for (int64_t i = 0; i < kSmall; ++i) {
        const int four = nibbles[group / 2 * kSmall + i] >> (group % 2 * 4) & 15;
        const int q = kFifth ? four | (fifth[i] >> group & 1) << 4 : four;
        to[i] = d * static_cast<float>(q) - m;
      }
    }
    from = nibbles + kSuper / 2;
  }
}

// Four low bits, then two high ones, then 16 scales of groups of 16 and theirs.
void decode_q6_k(const uint8_t* from, int64_t blocks, float* to) {
  constexpr int64_t kBytes = kSuper / 2 + kSuper / 4 + kSuper / 16;
  for (int64_t b = 0; b < blocks; ++b, from += kBytes + 2, to += kSuper) {
    const uint8_t *low = from, *high = low + kSuper / 2, *scales = high + kSuper / 4;
    const float scale = half(from + kBytes);
    for (int64_t i = 0; i < kSuper; ++i) {
      const int64_t section = i / 128, quarter = i % 128 / 32,
                    place = i % 32;  // 128 numbers, four runs of 32
      const int four = low[section * 64 + quarter % 2 * 32 + place] >> (quarter / 2 * 4) & 15;
      const int two = high[section * 32 + place] >> (quarter * 2) & 3;
      to[i] = scale * static_cast<float>(read<int8_t>(scales + i / 16)) *
              static_cast<float>((four | two << 4) - 32);
    }
  }
}

}  // namespace

const std::vector<GgufType>& gguf_types() {
  static const std::vector<GgufType> types = {
      {0, "F32", 1, 4, decode_plain<float>, encode_plain<float>},
      {1, "F16", 1, 2, decode_plain<Float16>, encode_plain<Float16>},
      {2, "Q4_0", kSmall, Nibbles::bytes(false, false), decode_nibbles<Nibbles{false, false, 8}>,
       encode_q4_0},
      {3, "Q4_1", kSmall, Nibbles::bytes(true, false), decode_nibbles<Nibbles{true, false, 0}>, encode_q4_1},
      {6, "Q5_0", kSmall, Nibbles::bytes(false, true), decode_nibbles<Nibbles{false, true, 16}>},
      {7, "Q5_1", kSmall, Nibbles::bytes(true, true), decode_nibbles<Nibbles{true, true, 0}>},
      {8, "Q8_0", kSmall, 2 + kSmall, decode_q8_0, encode_q8_0},
      {12, "Q4_K", kSuper, 4 + 12 + kSuper / 2, decode_k<false>},
      {13, "Q5_K", kSuper, 4 + 12 + kSuper / 8 + kSuper / 2, decode_k<true>},
      {14, "Q6_K", kSuper, kSuper / 2 + kSuper / 4 + kSuper / 16 + 2, decode_q6_k},
      {30, "BF16", 1, 2, decode_plain<BFloat16>, encode_plain<BFloat16>},
      {39, "MXFP4", kSmall, 1 + kSmall / 2, decode_mxfp4},
  };
  return types;
}

}  // namespace multihead::io
