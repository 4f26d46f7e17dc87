// Random numbers, exp, tanh and sigmoid for score functions. The functions are without a branch or a call, so that compilers compute eight
// scores at a time where the C library takes them one by one. They repeat those of kernels/simd/math-inl.h: an
// installed header must do without Highway, and without FMA, which the caller's target may lack.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "multihead/core/tensor/rng.h"
#include "multihead/ops/attention/dual.h"

namespace multihead {

/// A random number in [0, 1) with 24 bits that depends on the key and one to four integers alone: in masks and score
/// functions, on where a score is, however the call is split. Other keys give other numbers; it has no derivative.
///
///   mask_mod([key](ScoreIndex at) { return random(key, at.batch, at.head, at.query, at.key) >= 0.2f; })  // DropKey
///
/// It is word (last % 4) of Philox4x32-10(counter {integers, the last divided by 4, missing ones -1}, key), cut to 24
/// bits. Traced functions have keys below 2^53.
template <class... Index>
float random(uint64_t key, Index... index) {
  static_assert(sizeof...(Index) >= 1 && sizeof...(Index) <= 4 && (std::is_integral_v<Index> && ...),
                "random(key, ...) takes one to four integers after the key");
  std::array<uint32_t, 4> counter = {~0u, ~0u, ~0u, ~0u};
  size_t count = 0;
  ((counter[count++] = static_cast<uint32_t>(index)), ...);
  const uint32_t last = counter[count - 1];
  counter[count - 1] = static_cast<uint32_t>(static_cast<int32_t>(last) >> 2);
  const auto words = philox(counter, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return static_cast<float>(words[last % 4] >> 8) * 0x1p-24f;
}

}  // namespace multihead

/// Write mh::fast::tanh(score) in a score function; the argument is float, double or a Dual of them. f32
/// comes from polynomials (largest error in units of the last place: exp 1.2, tanh 1.6, sigmoid 2.4;
/// infinities, NaN and subnormal numbers as in the C library), f64 is the C library's.
namespace multihead::fast {

namespace detail {

inline int32_t bits(float x) { return std::bit_cast<int32_t>(x); }
inline float value(int32_t bits) { return std::bit_cast<float>(bits); }

inline constexpr int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// Comparisons are made on the bits: GCC keeps a branch for a comparison of floats, which might trap.
inline float select(bool first, float a, float b) {
  const int32_t mask = -static_cast<int32_t>(first);
  return value((bits(a) & mask) | (bits(b) & ~mask));
}

// 2^(exponent - 127)
inline float power(int32_t exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23); }

}  // namespace detail

inline double exp(double x) { return std::exp(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

inline float exp(float x) {
  using namespace detail;
  // Beyond -104.5 and 89 the result is 0 and infinity. NaN stays.
  const int32_t negative = bits(x) >> 31, magnitude = bits(x) & kMagnitude;
  const int32_t limit = (bits(104.5f) & negative) | (bits(89.0f) & ~negative);
  x = select((magnitude > limit) & (magnitude <= kInfinity), value(limit | (negative & ~kMagnitude)), x);
  // 1.5·2^23 rounds x / ln2 to an integer n and leaves n + 127 in the low bits; ln2 comes in two parts, the
  // first with so few bits that n times it is exact.
  constexpr float kMagic = 12582912.0f + 127;
  const float shifted = x * 1.44269504f + kMagic, n = shifted - kMagic;
  const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
  float q = 0.00138145591f;
  q = q * r + 0.00836873563f;
  q = q * r + 0.0416683899f;
  q = q * r + 0.166665205f;
  q = q * r + 0.499999934f;
  // 2^n in two factors, each of them normal: subnormal results come out, and 2^128 does not stop short.
  const int32_t biased = bits(shifted) - 0x4B400000, half = biased >> 1;
  return (1 + (r * r * q + r)) * power(half + 64) * power(biased - half + 63);
}

inline float sigmoid(float x) {
  using namespace detail;
  const float e = exp(value(bits(x) | ~kMagnitude));
  return select(bits(x) < 0, e, 1.0f) / (1 + e);
}

inline float tanh(float x) {
  using namespace detail;
  const float t = x * x;
  float p = -0.00570498722f;
  p = p * t + 0.0206390874f;
  p = p * t - 0.0537397151f;
  p = p * t + 0.133314422f;
  p = p * t - 0.333332819f;
  const float e = exp(-2 * value(bits(x) & kMagnitude)), large = 1 - 2 * e / (1 + e);
  const bool is_small = (bits(x) & kMagnitude) < bits(0.625f);
  return select(is_small, t * x * p + x, value(bits(large) | (bits(x) & ~kMagnitude)));
}

template <class T>
Dual<T> exp(Dual<T> x) {
  const T y = exp(x.value);
  return {y, y * x.derivative};
}
template <class T>
Dual<T> tanh(Dual<T> x) {
  const T y = tanh(x.value);
  return {y, (1 - y * y) * x.derivative};
}
template <class T>
Dual<T> sigmoid(Dual<T> x) {
  const T y = sigmoid(x.value);
  return {y, y * (1 - y) * x.derivative};
}

}  // namespace multihead::fast
