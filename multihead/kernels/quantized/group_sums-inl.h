// Sums of products of integers over a group of 32 along k, 16 outputs in lanes.
//   q4  vpmaddubsw adds two products of w <= 15 and |x| <= 127 to an int16, which holds the eight of a group
//   q8  the same of |w| and x with w's sign: two products fit (2 · 128 · 127), so each is widened
//   5 bits  halves of q4's sums, since eight products of w <= 31 are what an int16 holds
//   6 bits  likewise of |w| <= 32 and x with w's sign; the halves times their scales, together below 2^24
//   dots  vpdpbusd adds four products of the same operands, but with several rows in q8 of w + 128 and x

#if defined(MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_GROUP_SUMS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "multihead/kernels/quantized/groups.h"
#include "multihead/kernels/quantized/integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
using GroupBytes = hn::Repartition<uint8_t, TileInts>;
using ByteVec = hn::Vec<GroupBytes>;

inline constexpr int kPanelVectors = static_cast<int>(groups::kPanelColumns / kLanes);
inline constexpr int kVectorsOfManyRows = 1;
inline constexpr int64_t kGroupTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
inline constexpr int64_t kGroupBytesAhead = 3072;

HWY_INLINE ByteVec NeighboursOf(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof(four));
  return hn::BitCast(GroupBytes(), hn::Set(TileInts(), four));
}

#if HWY_TARGET == HWY_AVX3
HWY_INLINE IntVec PairsOfBytes(ByteVec u, ByteVec s) { return IntVec{_mm512_maddubs_epi16(u.raw, s.raw)}; }
HWY_INLINE IntVec AddShorts(IntVec a, IntVec b) { return IntVec{_mm512_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntVec PairsOfShorts(IntVec a) { return IntVec{_mm512_madd_epi16(a.raw, _mm512_set1_epi16(1))}; }
HWY_INLINE ByteVec AbsoluteBytes(ByteVec w) { return ByteVec{_mm512_abs_epi8(w.raw)}; }
HWY_INLINE ByteVec WithSignOf(ByteVec w, ByteVec x) {
  return ByteVec{_mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(w.raw), _mm512_setzero_si512(), x.raw)};
}
#else
HWY_INLINE IntVec PairsOfBytes(ByteVec u, ByteVec s) { return IntVec{_mm256_maddubs_epi16(u.raw, s.raw)}; }
HWY_INLINE IntVec AddShorts(IntVec a, IntVec b) { return IntVec{_mm256_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntVec PairsOfShorts(IntVec a) { return IntVec{_mm256_madd_epi16(a.raw, _mm256_set1_epi16(1))}; }
HWY_INLINE ByteVec AbsoluteBytes(ByteVec w) { return ByteVec{_mm256_abs_epi8(w.raw)}; }
HWY_INLINE ByteVec WithSignOf(ByteVec w, ByteVec x) { return ByteVec{_mm256_sign_epi8(x.raw, w.raw)}; }
#endif

// sum + Σ of four products of unsigned and signed bytes; without dots in two int16, which hold a group of q4.
template <ByteSums kSums>
HWY_INLINE IntVec AddSmall(IntVec sum, ByteVec u, ByteVec s) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kSums == ByteSums::dots)
    return DotBytes(sum, hn::BitCast(TileInts(), u), hn::BitCast(TileInts(), s));
#endif
  return InOrder(AddShorts(sum, PairsOfBytes(u, s)));
}
template <ByteSums kSums>
HWY_INLINE IntVec AddLarge(IntVec sum, ByteVec u, ByteVec s) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kSums == ByteSums::dots)
    return DotBytes(sum, hn::BitCast(TileInts(), u), hn::BitCast(TileInts(), s));
#endif
  return InOrder(hn::Add(sum, PairsOfShorts(PairsOfBytes(u, s))));
}

// Whether the sums are those of w + 128, 128 · Σ x too much: half the operations of w's signs. One row waits for
// memory, which it reads faster (1.1 times) with the signs.
template <int kBits, ByteSums kSums, int MR>
inline constexpr bool kShiftsWeight = kSums == ByteSums::dots&& kBits == 8 && MR > 1;

// The integer sums of one group, MR rows times NV vectors, four values of k a step.
template <GroupFormat kFormat, ByteSums kSums, int MR, int NV>
HWY_INLINE void GroupSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  const GroupBytes d;
  constexpr int kBits = kFormat.bits;
  constexpr int64_t kVectorBytes = kLanes * groups::kNeighbours, kHalf = kWeightGroup / 2;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sums[i][j] = hn::Zero(TileInts());
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < (kBits == 4 ? kHalf : kWeightGroup); k += groups::kNeighbours) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const ByteVec v = hn::LoadU(d, w + k * groups::kPanelColumns + j * kVectorBytes);
      if constexpr (kBits == 4) {
        const hn::Repartition<uint16_t, GroupBytes> d16;
        const ByteVec low_bits = hn::Set(d, uint8_t{15}), low = hn::And(v, low_bits),
                      high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v))), low_bits);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          sums[i][j] = AddSmall<kSums>(sums[i][j], low, NeighboursOf(x + i * x_stride + k));
          sums[i][j] = AddSmall<kSums>(sums[i][j], high, NeighboursOf(x + i * x_stride + kHalf + k));
        }
      } else if constexpr (kShiftsWeight<kBits, kSums, MR>) {
        const ByteVec w_and_128 = hn::Xor(v, hn::Set(d, uint8_t{128}));
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i)
          sums[i][j] = AddLarge<kSums>(sums[i][j], w_and_128, NeighboursOf(x + i * x_stride + k));
      } else {
        const ByteVec absolute = AbsoluteBytes(v);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          const ByteVec s = WithSignOf(v, NeighboursOf(x + i * x_stride + k));
          sums[i][j] = AddLarge<kSums>(sums[i][j], absolute, s);
        }
      }
    }
  }
  if constexpr (kBits == 4 && kSums == ByteSums::pairs) {
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) sums[i][j] = PairsOfShorts(sums[i][j]);
    }
  }
}

// The unsigned values of step kStep, those at k = 4 · kStep and the next three.
template <GroupFormat kFormat, int kStep>
HWY_INLINE ByteVec BlockValues(const uint8_t* w) {
  const GroupBytes d;
  const hn::Repartition<uint16_t, GroupBytes> d16;
  constexpr int64_t kPlane = groups::kPanelColumns * kWeightGroup / 2;
  ByteVec v = hn::LoadU(d, w + kStep % 4 * groups::kStepBytes);
  if constexpr (kStep >= 4) v = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v)));
  v = hn::And(v, hn::Set(d, uint8_t{15}));
  // The bits above move to place 4; what comes along from the neighbour in 16 bits is cut off.
  constexpr bool kTwo = kFormat.bits == 6;
  constexpr int kFrom = kTwo ? kStep / 2 * 2 : kStep;
  const auto more = hn::BitCast(d16, hn::LoadU(d, w + kPlane + (kTwo ? kStep % 2 * groups::kStepBytes : 0)));
  const ByteVec mask = hn::Set(d, static_cast<uint8_t>(kTwo ? 0x30 : 0x10));
  if constexpr (kFrom <= 4) {
    return hn::Or(v, hn::And(hn::BitCast(d, hn::ShiftLeft<4 - kFrom>(more)), mask));
  } else {
    return hn::Or(v, hn::And(hn::BitCast(d, hn::ShiftRight<kFrom - 4>(more)), mask));
  }
}

// Whether the halves of a group are summed apart.
template <GroupFormat kFormat>
inline constexpr bool kHasHalves = kFormat.bits == 5 || kFormat.bits == 6;

// The integer sums of half a group of five or six bits.
template <GroupFormat kFormat, ByteSums kSums, int kHalf, int MR, int NV>
HWY_INLINE void HalfSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  const GroupBytes d;
#pragma GCC unroll 2
  for (int j = 0; j < NV; ++j) {
    const uint8_t* from = w + j * kLanes * groups::kNeighbours;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) sums[i][j] = hn::Zero(TileInts());
    const auto add = [&](auto step) HWY_ATTR {
      constexpr int kStep = step();
      const ByteVec v = BlockValues<kFormat, kStep>(from);
      if constexpr (kFormat.middle() > 0) {
        const ByteVec less = hn::Sub(v, hn::Set(d, static_cast<uint8_t>(kFormat.middle()))),
                      absolute = AbsoluteBytes(less);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          const ByteVec s = WithSignOf(less, NeighboursOf(x + i * x_stride + 4 * kStep));
          sums[i][j] = AddSmall<kSums>(sums[i][j], absolute, s);
        }
      } else {
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          sums[i][j] = AddSmall<kSums>(sums[i][j], v, NeighboursOf(x + i * x_stride + 4 * kStep));
        }
      }
    };
    add(std::integral_constant<int, 4 * kHalf>()), add(std::integral_constant<int, 4 * kHalf + 1>());
    add(std::integral_constant<int, 4 * kHalf + 2>()), add(std::integral_constant<int, 4 * kHalf + 3>());
    if constexpr (kSums == ByteSums::pairs) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) sums[i][j] = PairsOfShorts(sums[i][j]);
    }
  }
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
