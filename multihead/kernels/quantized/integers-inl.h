// Shared by the integer products: rounding rows of floats to integers of a common scale, and the dots.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_INTEGERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_INTEGERS_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_INTEGERS_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_INTEGERS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/arm_numbers.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

using TileInts = hn::Rebind<int32_t, TileFloats>;
using IntVec = hn::Vec<TileInts>;

// Ways to sum products of bytes: of four in pairs, of four at once, or of eight for two rows and two columns.
enum class ByteSums { pairs, dots, squares };

// What this CPU sums this many rows by.
inline ByteSums BestByteSums([[maybe_unused]] int64_t rows) {
#if HWY_TARGET == HWY_NEON
  if (rows > 1 && int8_squares()) return ByteSums::squares;
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  if (int8_dots()) return ByteSums::dots;
#endif
  return ByteSums::pairs;
}

// Where products of bytes have vectors. Elsewhere loops go from byte to byte.
#undef MULTIHEAD_BYTE_VECTORS
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#define MULTIHEAD_BYTE_VECTORS 1
#else
#define MULTIHEAD_BYTE_VECTORS 0
#endif

#if HWY_TARGET == HWY_AVX3
// sum + Σ of four u · s. Highway 1.0.3 does not know the instruction and its target has no name for the
// compiler; the callers have asked the CPU.
HWY_INLINE IntVec DotBytes(IntVec sum, IntVec u, IntVec s) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(u.raw), "v"(s.raw));
  return sum;
}
#elif HWY_TARGET == HWY_NEON
// sdot: sum + Σ of four a · b, both signed.
HWY_INLINE IntVec DotBytes(IntVec sum, IntVec a, IntVec b) {
  __asm__(MH_NUMBERED "0x4e809400" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
  return sum;
}
// The same with lane kLane of b.
template <int kLane>
HWY_INLINE IntVec DotBytesOfLane(IntVec sum, IntVec a, IntVec b) {
  __asm__(MH_NUMBERED "0x4f80e000 + %3"
          : "+w"(sum.raw)
          : "w"(a.raw), "w"(b.raw), "i"((kLane & 1) << 21 | (kLane & 2) << 10));
  return sum;
}
// smmla: sum + a · bᵀ of two rows of eight each, [a0·b0, a0·b1, a1·b0, a1·b1].
HWY_INLINE IntVec SquareOfBytes(IntVec sum, IntVec a, IntVec b) {
  __asm__(MH_NUMBERED "0x4e80a400" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
  return sum;
}
// The sum of DotBytes(). Two products of bytes fit an int16 unless all four are -128, which rows of x never hold.
template <ByteSums kSums>
HWY_INLINE IntVec AddFour(IntVec sum, IntVec a, IntVec b) {
  if constexpr (kSums != ByteSums::pairs) return DotBytes(sum, a, b);
  const int8x16_t x = vreinterpretq_s8_s32(a.raw), y = vreinterpretq_s8_s32(b.raw);
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
  return IntVec(vpadalq_s16(sum.raw, vpaddq_s16(low, high)));
}
template <ByteSums kSums, int kLane>
HWY_INLINE IntVec AddFourOfLane(IntVec sum, IntVec a, IntVec b) {
  if constexpr (kSums != ByteSums::pairs) return DotBytesOfLane<kLane>(sum, a, b);
  return AddFour<kSums>(sum, a, IntVec(vdupq_laneq_s32(b.raw, kLane)));
}
// Eight values of two rows.
HWY_INLINE IntVec TwoRows(const int8_t* first, const int8_t* second) {
  return IntVec(vreinterpretq_s32_s8(vcombine_s8(vld1_s8(first), vld1_s8(second))));
}
// The rows [2][4 columns] of two squares of two columns each.
HWY_INLINE void RowsOfSquares(IntVec left, IntVec right, IntVec& first, IntVec& second) {
  const int64x2_t a = vreinterpretq_s64_s32(left.raw), b = vreinterpretq_s64_s32(right.raw);
  first = IntVec(vreinterpretq_s32_s64(vzip1q_s64(a, b)));
  second = IntVec(vreinterpretq_s32_s64(vzip2q_s64(a, b)));
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// The sum, here and now. Sums of integers may be taken in any order, and GCC's order (a tree over everything
// that is unrolled) needs more registers than there are.
HWY_INLINE IntVec InOrder(IntVec sum) {
#if HWY_TARGET == HWY_AVX3
  __asm__("" : "+v"(sum.raw));
#else
  __asm__("" : "+x"(sum.raw));
#endif
  return sum;
}
#endif

// The scale of numbers whose largest absolute value has the bits `largest`, and what they are multiplied by.
// NaN and infinities make the scale NaN.
struct RowScale {
  explicit RowScale(int32_t largest) {
    const auto max = std::bit_cast<float>(largest);
    if (largest >= 0x7f800000) {
      scale = std::numeric_limits<float>::quiet_NaN();
    } else if (max >= 0x1p-119f) {  // smaller ones would have no normal scale and an infinite inverse
      scale = max / 127;
      inverse = 127 / max;
    }
  }
  float scale = 0, inverse = 0;
};

// As integers the bits of positive floats are ordered as the floats are, NaN above all of them.
HWY_INLINE int32_t LargestBits(const float* x, int64_t count) {
  const TileFloats d;
  const TileInts di;
  IntVec most = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  }
  if (i < count) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(count - i));
    most = hn::Max(most, hn::BitCast(di, hn::Abs(LoadLanes(mask, d, x + i))));
  }
  return hn::GetLane(hn::MaxOfLanes(di, most));
}

// q[k] = zero + x[k] / scale, to nearest, ties to even, for k < padded; x counts as zero past count. Returns
// the scale.
template <class Q>
HWY_INLINE float QuantizeRow(const float* x, int64_t count, int64_t padded, int zero, Q* q) {
  const TileFloats d;
  const TileInts di;
  const hn::Rebind<Q, TileFloats> dq;
  const RowScale row(LargestBits(x, count));
  if (row.inverse == 0) {
    std::fill(q, q + padded, static_cast<Q>(zero));
    return row.scale;
  }
  // Where one is the last place of a float, adding rounds, and the bits count up from those of the middle.
  const TileVec inverse = hn::Set(d, row.inverse), middle = hn::Set(d, 12582912.0f);  // 1.5 · 2^23
  const IntVec base = hn::Set(di, 0x4b400000 - zero);
  const auto of = [&](TileVec v) HWY_ATTR {
    return hn::DemoteTo(dq, hn::Sub(hn::BitCast(di, hn::Add(hn::Mul(v, inverse), middle)), base));
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(of(hn::LoadU(d, x + i)), dq, q + i);
  for (; i < padded; i += kLanes) {
    HWY_ALIGN Q rest[kLanes];
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(count - i, 0)));
    hn::StoreU(i < count ? of(LoadLanes(mask, d, x + i)) : of(hn::Zero(d)), dq, rest);
    std::copy_n(rest, std::min(kLanes, padded - i), q + i);
  }
  return row.scale;
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
