// Cached keys and values in 8 bits.
//
// A row of head_dim numbers x is q, round(x / scale) to nearest even with scale = max|x| / 127, and the
// scale:
//   [head_dim] int8, [1] f32
// in words of 32 bits, so that a tensor of i32 holds such rows. The number that a kernel computes with is
// f32(q) · scale, rounded to f32: attention has the bits of attention to those numbers.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// Words that a row takes; dim is a multiple of 4.
inline constexpr int64_t int8_row_words(int64_t dim) { return dim / 4 + 1; }
/// The numbers in a row of this many words.
inline constexpr int64_t int8_row_dim(int64_t words) { return 4 * (words - 1); }

/// A row with a NaN or an infinity becomes NaN; one whose largest number is below 2^-119, zero.
void quantize_int8_row(const float* x, int64_t dim, int32_t* row);
void widen_int8_row(const int32_t* row, int64_t dim, float* x);

}  // namespace multihead::kernels
