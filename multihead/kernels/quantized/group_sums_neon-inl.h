// What group_sums-inl.h has for x86, on ARM: its products of bytes are signed, so that values and x are multiplied as they
// are.

#if defined(MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_NEON_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_NEON_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_NEON_INL_H_
#endif

#include <algorithm>
#include <utility>

#include "multihead/kernels/quantized/groups.h"
#include "multihead/kernels/quantized/integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_NEON
inline constexpr int kPanelVectors = static_cast<int>(groups::kPanelColumns / kLanes);
inline constexpr int kVectorsOfManyRows = 2;  // 32 registers: 8 sums of integers, 8 of floats, operands
inline constexpr int64_t kGroupTileRows = 4;
inline constexpr int64_t kGroupBytesAhead = 3072;

template <int kBits, ByteSums kSums, int MR>
inline constexpr bool kShiftsWeight = false;
template <GroupFormat kFormat>
inline constexpr bool kHasHalves = kFormat.has_two_scales();

// Values of step kStep, those at k = 4 · kStep and the next three, of the four columns from `w` on.
template <GroupFormat kFormat, int kStep>
HWY_INLINE IntVec StepValues(const uint8_t* w) {
  if constexpr (kFormat.bits == 8)
    return IntVec(vreinterpretq_s32_u8(vld1q_u8(w + kStep * groups::kStepBytes)));
  uint8x16_t v = vld1q_u8(w + kStep % 4 * groups::kStepBytes);
  if constexpr (kStep >= 4) {
    v = vshrq_n_u8(v, 4);
  } else {
    v = vandq_u8(v, vdupq_n_u8(15));
  }
  if constexpr (kFormat.bits > 4) {
    constexpr groups::HighBits kAt(kFormat.bits - 4, kStep * groups::kNeighbours);
    constexpr int64_t kPlanes = groups::kPanelColumns * kWeightGroup / 2;
    uint8x16_t more = vld1q_u8(w + kPlanes + kAt.plane * groups::kStepBytes);
    if constexpr (kAt.shift > 0) more = vshrq_n_u8(more, kAt.shift);
    more = vandq_u8(more, vdupq_n_u8((1 << (kFormat.bits - 4)) - 1));
    v = vorrq_u8(v, vshlq_n_u8(more, 4));
  }
  if constexpr (kFormat.middle() > 0) v = vsubq_u8(v, vdupq_n_u8(kFormat.middle()));
  return IntVec(vreinterpretq_s32_u8(v));
}

// Calls use.operator()<step>() for kCount steps, one after the other: GCC would load what many of them need first, and
// keep it on the stack.
template <int kFirst, int kCount, class Use>
HWY_INLINE void EachStep(const Use& use) {
  [&]<int... kStep>(std::integer_sequence<int, kStep...>) HWY_ATTR {
    ((use.template operator()<kFirst + kStep>(), [] { __asm__ volatile("" ::: "memory"); }()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// The integer sums of kCount steps from kFirst on, MR rows times NV vectors.
template <GroupFormat kFormat, ByteSums kSums, int kFirst, int kCount, int MR, int NV>
HWY_INLINE void StepSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sums[i][j] = hn::Zero(TileInts());
  }
  IntVec rows[MR];
  EachStep<kFirst, kCount>([&]<int kStep>() HWY_ATTR {
#pragma GCC unroll 4
    for (int i = 0; i < MR && kStep % 4 == 0; ++i) {
      rows[i] = IntVec(vreinterpretq_s32_s8(vld1q_s8(x + i * x_stride + kStep * groups::kNeighbours)));
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const IntVec v = StepValues<kFormat, kStep>(w + j * kLanes * groups::kNeighbours);
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) sums[i][j] = AddFourOfLane<kSums, kStep % 4>(sums[i][j], v, rows[i]);
    }
  });
}

// The same of two steps and two rows at a time; an odd last row is its own neighbour.
template <GroupFormat kFormat, int kFirst, int kCount, int MR, int NV>
HWY_INLINE void SquareSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  constexpr int kPairs = (MR + 1) / 2;
  IntVec squares[kPairs][NV][2];
#pragma GCC unroll 2
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) squares[i][j][0] = squares[i][j][1] = hn::Zero(TileInts());
  }
  EachStep<0, kCount / 2>([&]<int kTwo>() HWY_ATTR {
    constexpr int kStep = kFirst + 2 * kTwo;
    IntVec rows[kPairs];
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i) {
      const int8_t* from = x + kStep * groups::kNeighbours;
      rows[i] = TwoRows(from + 2 * i * x_stride, from + std::min(2 * i + 1, MR - 1) * x_stride);
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const uint8_t* columns = w + j * kLanes * groups::kNeighbours;
      const int32x4_t a = StepValues<kFormat, kStep>(columns).raw,
                      b = StepValues<kFormat, kStep + 1>(columns).raw;
      const IntVec left(vzip1q_s32(a, b)), right(vzip2q_s32(a, b));
#pragma GCC unroll 2
      for (int i = 0; i < kPairs; ++i) {
        squares[i][j][0] = SquareOfBytes(squares[i][j][0], rows[i], left);
        squares[i][j][1] = SquareOfBytes(squares[i][j][1], rows[i], right);
      }
    }
  });
#pragma GCC unroll 2
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      IntVec last;
      RowsOfSquares(squares[i][j][0], squares[i][j][1], sums[2 * i][j],
                    2 * i + 1 < MR ? sums[2 * i + 1][j] : last);
    }
  }
}

template <GroupFormat kFormat, ByteSums kSums, int kFirst, int kCount, int MR, int NV>
HWY_INLINE void PartSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  if constexpr (kSums == ByteSums::squares && MR > 1) {
    SquareSums<kFormat, kFirst, kCount, MR, NV>(x, x_stride, w, sums);
  } else {
    StepSums<kFormat, kSums, kFirst, kCount, MR, NV>(x, x_stride, w, sums);
  }
}

// The integer sums of one group.
template <GroupFormat kFormat, ByteSums kSums, int MR, int NV>
HWY_INLINE void GroupSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  PartSums<kFormat, kSums, 0, 8, MR, NV>(x, x_stride, w, sums);
}

// Of half a group.
template <GroupFormat kFormat, ByteSums kSums, int kHalf, int MR, int NV>
HWY_INLINE void HalfSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  PartSums<kFormat, kSums, 4 * kHalf, 4, MR, NV>(x, x_stride, w, sums);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
