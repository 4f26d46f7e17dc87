// Numbers narrower than the arithmetic: rounded after every instruction, as a tensor of that type would be.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "multihead/ops/attention/program/program-inl.h"
#include "multihead/ops/attention/program/registers-inl.h"

namespace multihead::program {

// To the nearest of `kept` bits of significand, ties to even. NaN stays, overflow becomes infinity.
MH_INLINE float to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U;
  return x != x ? x : std::bit_cast<float>(rounded);
}

MH_INLINE float to_f16(float x) {
  // Adding and taking away 1.5·2^k cuts at the bit that a half of this size ends with; below 2^-14 that is
  // 2^-24.
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23) & 0xFF, least = exponent < 113 ? 113 : exponent;
  const float magic = std::bit_cast<float>(((least + 13) << 23) | 0x400000U);
  const float rounded = std::copysign((std::fabs(x) + magic) - magic, x);
  return exponent > 142 ? (x != x ? x : std::copysign(HUGE_VALF, x))
                        : (std::fabs(rounded) > 65504.0f ? std::copysign(HUGE_VALF, x) : rounded);
}

template <class T>
MH_INLINE void round_to(Kind kind, T* y) {
  switch (kind) {
    case Kind::f16:
      each([&](int i) { y[i] = static_cast<T>(to_f16(static_cast<float>(y[i]))); });
      break;
    case Kind::bf16:
      each([&](int i) { y[i] = static_cast<T>(to_bf16(static_cast<float>(y[i]))); });
      break;
    case Kind::f32:
      if constexpr (sizeof(T) > sizeof(float)) {
        each([&](int i) { y[i] = static_cast<T>(static_cast<float>(y[i])); });
      }
      break;
    case Kind::any:
    case Kind::f64:
      break;
  }
}

}  // namespace multihead::program
