// Tile instructions emulated by plain loops.
//
// The loops follow the instructions' published description; tests compare their bits with the CPU's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "multihead/kernels/amx/amx-inl.h"

namespace multihead::kernels {

/// c[16][16] += a · b in bf16; distances of rows in bytes. Even and odd k have a sum each, which are added in
/// the end; numbers below the smallest normal count as zero.
inline void emulate_tile(const void* a, int64_t a_row, const void* b, int64_t b_row, float* c,
                         int64_t c_stride) {
  const auto flushed = [](float x) { return std::abs(x) < 0x1p-126f ? 0.0f : x; };
  const auto row_of = [&](const void* from, int64_t at, float(&to)[kAmxStep]) {
    uint16_t bits[kAmxStep];
    std::memcpy(bits, static_cast<const char*>(from) + at, sizeof(bits));
    for (int64_t i = 0; i < kAmxStep; ++i) to[i] = flushed(std::bit_cast<float>(uint32_t{bits[i]} << 16));
  };
  float rows_of_b[kAmxLines][kAmxStep];
  for (int64_t k = 0; k < kAmxStep / 2; ++k) row_of(b, k * b_row, rows_of_b[k]);
  for (int64_t m = 0; m < kAmxLines; ++m) {
    float even[kAmxLines] = {}, odd[kAmxLines] = {}, row[kAmxStep];
    row_of(a, m * a_row, row);
    for (int64_t k = 0; k < kAmxStep / 2; ++k) {
      for (int64_t n = 0; n < kAmxLines; ++n) {  // a product of two bf16 is exact in f32
        even[n] = flushed(even[n] + row[2 * k] * rows_of_b[k][2 * n]);
        odd[n] = flushed(odd[n] + row[2 * k + 1] * rows_of_b[k][2 * n + 1]);
      }
    }
    for (int64_t n = 0; n < kAmxLines; ++n) {
      float& sum = c[m * c_stride + n];
      sum = flushed(sum + flushed(even[n] + odd[n]));
    }
  }
}

/// The same for int8, of which a row has 64; the sums are int32 in the place of floats.
inline void emulate_byte_tile(const void* a, int64_t a_row, const void* b, int64_t b_row, float* c,
                              int64_t c_stride) {
  const auto *left = static_cast<const int8_t*>(a), *right = static_cast<const int8_t*>(b);
  for (int64_t m = 0; m < kAmxLines; ++m) {
    for (int64_t n = 0; n < kAmxLines; ++n) {
      int32_t sum = std::bit_cast<int32_t>(c[m * c_stride + n]);
      for (int64_t k = 0; k < 64; ++k) sum += left[m * a_row + k] * right[k / 4 * b_row + 4 * n + k % 4];
      c[m * c_stride + n] = std::bit_cast<float>(sum);
    }
  }
}

}  // namespace multihead::kernels
