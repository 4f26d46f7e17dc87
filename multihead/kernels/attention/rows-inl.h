// Rows of operands and results in memory, f32 or bf16: where an element is, loading, storing scaled.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ROWS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ROWS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "multihead/kernels/attention/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Element `index` of an f32 or bf16 array.
HWY_INLINE const void* At(const void* base, int64_t index, bool bf16) {
  return static_cast<const char*>(base) + index * (bf16 ? 2 : 4);
}
HWY_INLINE void* At(void* base, int64_t index, bool bf16) {
  return static_cast<char*>(base) + index * (bf16 ? 2 : 4);
}

// … and its value.
HWY_INLINE float ElementOf(const void* base, int64_t index, bool bf16) {
  if (!bf16) return static_cast<const float*>(base)[index];
  return Wide(static_cast<const uint16_t*>(base)[index]);
}

// A row of either type as f32.
HWY_INLINE void LoadRow(const void* from, int64_t n, bool bf16, float* to) {
  const F d;
  int64_t c = 0;
  if (!bf16) {
    const float* x = static_cast<const float*>(from);
    for (; c + kN <= n; c += kN) hn::StoreU(hn::LoadU(d, x + c), d, to + c);
    for (; c < n; ++c) to[c] = x[c];
    return;
  }
  const auto* x = static_cast<const uint16_t*>(from);
  for (; c + 4 * kN <= n; c += 4 * kN) {
    const Vec x0 = LoadWide(d, x + c), x1 = LoadWide(d, x + c + kN);
    const Vec x2 = LoadWide(d, x + c + 2 * kN), x3 = LoadWide(d, x + c + 3 * kN);
    hn::StoreU(x0, d, to + c), hn::StoreU(x1, d, to + c + kN);
    hn::StoreU(x2, d, to + c + 2 * kN), hn::StoreU(x3, d, to + c + 3 * kN);
  }
  for (; c + kN <= n; c += kN) hn::StoreU(LoadWide(d, x + c), d, to + c);
  for (; c < n; ++c) to[c] = Wide(x[c]);
}

// to[c] = from[c] · factor; check gathers x · 0, which is NaN where x is not finite.
HWY_INLINE Vec StoreFloatRow(const float* from, Vec factor, int64_t n, float* to, Vec check) {
  const F d;
  int64_t c = 0;
  for (; c + kN <= n; c += kN) {
    const Vec x = hn::Mul(hn::LoadU(d, from + c), factor);
    check = hn::MulAdd(x, hn::Zero(d), check);
    hn::StoreU(x, d, to + c);
  }
  for (; c < n; ++c) {
    to[c] = from[c] * hn::GetLane(factor);
    check = hn::Add(check, hn::Set(d, to[c] * 0.0f));
  }
  return check;
}

// to[c] = bf16(from[c] · factor), to nearest even; check gathers x · 0, which is NaN where x is not finite.
HWY_INLINE Vec StoreBf16Row(const float* from, Vec factor, int64_t n, uint16_t* to, Vec check) {
  const F d;
  const I di;
  const hn::Rebind<uint16_t, F> d16;
  alignas(64) float tail[kN];
  for (int64_t c = 0; c < n; c += kN) {
    const int64_t rest = std::min<int64_t>(n - c, kN);
    const float* source = from + c;
    if (rest < kN) {
      std::fill_n(tail, kN, 0.0f);
      std::copy_n(from + c, rest, tail);
      source = tail;
    }
    const Vec x = hn::Mul(hn::LoadU(d, source), factor);
    check = hn::MulAdd(x, hn::Zero(d), check);
    const VecI bits = hn::BitCast(di, x);
    const VecI odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 1));
    const VecI rounded = hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7FFF)));
    const VecI quiet = hn::Or(bits, hn::Set(di, 0x400000));
    const VecI chosen = hn::IfThenElse(hn::RebindMask(di, hn::Ne(x, x)), quiet, rounded);
    const auto half = hn::DemoteTo(d16, hn::And(hn::ShiftRight<16>(chosen), hn::Set(di, 0xFFFF)));
    if (rest == kN) {
      hn::StoreU(half, d16, to + c);
    } else {
      alignas(32) uint16_t last[kN];
      hn::StoreU(half, d16, last);
      std::copy_n(last, rest, to + c);
    }
  }
  return check;
}

// Either, by the type of the row.
HWY_INLINE Vec StoreRow(const float* from, Vec factor, int64_t n, bool bf16, void* to, Vec check) {
  return bf16 ? StoreBf16Row(from, factor, n, static_cast<uint16_t*>(to), check)
              : StoreFloatRow(from, factor, n, static_cast<float*>(to), check);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
