// Tiles of products with weights in groups of 32 along k, 16 outputs in lanes.
//
//   y = Σ over groups, in order, of (scale · Σ x·w + min · Σ x) · x_scale
//
// where the inner sums are of integers: whatever way adds them has the same bits. The outer one multiplies
// and adds without FMAs, which not every instruction set has.
//   q4  vpmaddubsw adds two products of w <= 15 and |x| <= 127 to an int16, which holds the eight of a group
//   q8  the same of |w| and x with w's sign: two products fit (2 · 128 · 127), so each is widened
//   dots  vpdpbusd adds four products of the same operands

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_PACKED_LINEAR_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_PACKED_LINEAR_GROUPS_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_PACKED_LINEAR_GROUPS_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_PACKED_LINEAR_GROUPS_INL_H_
#endif

#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/packed_linear_groups.h"
#include "multihead/kernels/matmul/packed_linear_integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Some rows times one panel.
struct GroupTileArgs {
  const int8_t* x;  // quantised rows, whole groups
  int64_t x_stride;
  const float* x_scales;  // per row and group, as the sums of x
  const float* x_sums;
  int64_t groups;
  const uint8_t* w;
  float* y;
  int64_t ldy, columns;  // of y, at most 16
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
using GroupBytes = hn::Repartition<uint8_t, TileInts>;
using ByteVec = hn::Vec<GroupBytes>;

inline constexpr int kPanelVectors = static_cast<int>(groups::kPanelColumns / kLanes);
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
template <bool kDots>
HWY_INLINE IntVec AddSmall(IntVec sum, ByteVec u, ByteVec s) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kDots) return DotBytes(sum, hn::BitCast(TileInts(), u), hn::BitCast(TileInts(), s));
#endif
  return AddShorts(sum, PairsOfBytes(u, s));
}
template <bool kDots>
HWY_INLINE IntVec AddLarge(IntVec sum, ByteVec u, ByteVec s) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kDots) return DotBytes(sum, hn::BitCast(TileInts(), u), hn::BitCast(TileInts(), s));
#endif
  return hn::Add(sum, PairsOfShorts(PairsOfBytes(u, s)));
}

// The integer sums of one group, MR rows times NV vectors, four values of k a step.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_INLINE void GroupSums(const int8_t* x, int64_t x_stride, const uint8_t* w, IntVec (&sums)[MR][NV]) {
  const GroupBytes d;
  constexpr int64_t kVectorBytes = kLanes * groups::kNeighbours, kHalf = kWeightGroup / 2;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sums[i][j] = hn::Zero(TileInts());
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < (kDtype == WeightDtype::q4 ? kHalf : kWeightGroup); k += groups::kNeighbours) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const ByteVec v = hn::LoadU(d, w + k * groups::kPanelColumns + j * kVectorBytes);
      if constexpr (kDtype == WeightDtype::q4) {
        const hn::Repartition<uint16_t, GroupBytes> d16;
        const ByteVec low_bits = hn::Set(d, uint8_t{15}), low = hn::And(v, low_bits),
                      high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v))), low_bits);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          sums[i][j] = AddSmall<kDots>(sums[i][j], low, NeighboursOf(x + i * x_stride + k));
          sums[i][j] = AddSmall<kDots>(sums[i][j], high, NeighboursOf(x + i * x_stride + kHalf + k));
        }
      } else {
        const ByteVec absolute = AbsoluteBytes(v);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          const ByteVec s = WithSignOf(v, NeighboursOf(x + i * x_stride + k));
          sums[i][j] = AddLarge<kDots>(sums[i][j], absolute, s);
        }
      }
    }
  }
  if constexpr (kDtype == WeightDtype::q4 && !kDots) {
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) sums[i][j] = PairsOfShorts(sums[i][j]);
    }
  }
}

HWY_INLINE TileVec LoadHalves(const uint8_t* from) {
  const TileFloats d;
  const hn::Rebind<hwy::float16_t, TileFloats> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

// What one group adds to the sums of MR rows and NV vectors.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_INLINE void AddGroup(const GroupTileArgs& t, int64_t g, const uint8_t* w, const uint8_t* scales,
                         TileVec (&acc)[MR][NV]) {
  const TileFloats d;
  IntVec sums[MR][NV];
  GroupSums<kDtype, kDots, MR, NV>(t.x + g * kWeightGroup, t.x_stride, w, sums);
#pragma GCC unroll 2
  for (int j = 0; j < NV; ++j) {
    const TileVec scale = LoadHalves(scales + j * kLanes * 2);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      TileVec y = hn::Mul(hn::ConvertTo(d, sums[i][j]), scale);
      if constexpr (groups::GroupLayout(kDtype).has_min) {
        const TileVec min = LoadHalves(scales + groups::kPanelColumns * 2 + j * kLanes * 2);
        y = hn::Add(y, hn::Mul(min, hn::Set(d, t.x_sums[i * t.groups + g])));
      }
      acc[i][j] = hn::Add(acc[i][j], hn::Mul(y, hn::Set(d, t.x_scales[i * t.groups + g])));
    }
  }
}

template <int MR, int NV>
HWY_INLINE void StoreGroups(const GroupTileArgs& t, int first, const TileVec (&acc)[MR][NV]) {
  const TileFloats d;
#pragma GCC unroll 2
  for (int j = 0; j < NV; ++j) {
    const int64_t column = (first + j) * kLanes, lanes = t.columns - column;
    if (lanes <= 0) return;
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(lanes, kLanes)));
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      float* y = t.y + i * t.ldy + column;
      lanes >= kLanes ? hn::StoreU(acc[i][j], d, y) : StoreLanes(acc[i][j], mask, d, y);
    }
  }
}

template <int MR, int NV>
HWY_INLINE void ZeroGroups(TileVec (&acc)[MR][NV]) {
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::Zero(TileFloats());
  }
}

// MR rows times vectors [first, first + NV) of the panel.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_NOINLINE void GroupTile(const GroupTileArgs& t, int first) {
  constexpr groups::GroupLayout kLayout(kDtype);
  TileVec acc[MR][NV];
  ZeroGroups(acc);
  const uint8_t* w = t.w + first * kLanes * groups::kNeighbours;
  const uint8_t* scales = t.w + kLayout.value_bytes + first * kLanes * 2;
  for (int64_t g = 0; g < t.groups; ++g) {
#pragma GCC unroll 16
    for (int64_t line = 0; line < kLayout.bytes; line += 64) __builtin_prefetch(w + kGroupBytesAhead + line);
    AddGroup<kDtype, kDots, MR, NV>(t, g, w, scales, acc);
    w += kLayout.bytes;
    scales += kLayout.bytes;
  }
  StoreGroups(t, first, acc);
}

// One row times panels `step` apart: streams of memory which the CPU prefetches side by side. One core reads
// 25 GB/s so; 16 in one stream, prefetched or not; 8 streams are no faster (Zen 3, 2026-11).
inline constexpr int64_t kGroupStreams = 4;
template <WeightDtype kDtype, bool kDots>
HWY_NOINLINE void GroupStreams(const GroupTileArgs& t, int64_t step) {
  constexpr groups::GroupLayout kLayout(kDtype);
  const int64_t bytes = step * t.groups * kLayout.bytes;
  TileVec acc[kGroupStreams][1][kPanelVectors];
#pragma GCC unroll 8
  for (int64_t s = 0; s < kGroupStreams; ++s) ZeroGroups(acc[s]);
  const uint8_t* w = t.w;
  for (int64_t g = 0; g < t.groups; ++g, w += kLayout.bytes) {
#pragma GCC unroll 8
    for (int64_t s = 0; s < kGroupStreams; ++s) {
      const uint8_t* ws = w + s * bytes;
      AddGroup<kDtype, kDots, 1, kPanelVectors>(t, g, ws, ws + kLayout.value_bytes, acc[s]);
    }
  }
  GroupTileArgs to = t;
#pragma GCC unroll 8
  for (int64_t s = 0; s < kGroupStreams; ++s, to.y += step * groups::kPanelColumns)
    StoreGroups(to, 0, acc[s]);
}

// One row streams whole groups; more of them go through the panel, then in L1, once a vector.
template <WeightDtype kDtype, bool kDots, int MR>
HWY_INLINE void GroupRowsOf(const GroupTileArgs& t) {
  if constexpr (MR <= 2) {
    GroupTile<kDtype, kDots, MR, kPanelVectors>(t, 0);
  } else {
    for (int j = 0; j < kPanelVectors; ++j) GroupTile<kDtype, kDots, MR, 1>(t, j);
  }
}

template <WeightDtype kDtype, bool kDots>
void GroupRows(const GroupTileArgs& t, int64_t rows) {
  switch (rows) {
    case 1:
      return GroupRowsOf<kDtype, kDots, 1>(t);
    case 2:
      return GroupRowsOf<kDtype, kDots, 2>(t);
    case 3:
      return GroupRowsOf<kDtype, kDots, 3>(t);
    case 4:
      return GroupRowsOf<kDtype, kDots, 4>(t);
  }
#if HWY_TARGET == HWY_AVX3
  switch (rows) {
    case 5:
      return GroupRowsOf<kDtype, kDots, 5>(t);
    case 6:
      return GroupRowsOf<kDtype, kDots, 6>(t);
    case 7:
      return GroupRowsOf<kDtype, kDots, 7>(t);
    default:
      return GroupRowsOf<kDtype, kDots, 8>(t);
  }
#endif
}
#else
inline constexpr int64_t kGroupTileRows = 1;

inline float HalfAt(const uint8_t* from, int64_t index) {
  Float16 half;
  std::memcpy(&half.bits, from + 2 * index, sizeof(half.bits));
  return static_cast<float>(half);
}

template <WeightDtype kDtype, bool kDots>
void GroupRows(const GroupTileArgs& t, int64_t) {  // one row
  constexpr groups::GroupLayout kLayout(kDtype);
  float y[groups::kPanelColumns] = {};
  const uint8_t* w = t.w;
  for (int64_t g = 0; g < t.groups; ++g, w += kLayout.bytes) {
    const int8_t* x = t.x + g * kWeightGroup;
    int32_t sums[groups::kPanelColumns] = {};
    for (int64_t at = 0; at < kLayout.value_bytes; ++at) {
      const int64_t k = at / groups::kStepBytes * groups::kNeighbours + at % groups::kNeighbours;
      int32_t& sum = sums[at % groups::kStepBytes / groups::kNeighbours];
      if constexpr (kDtype == WeightDtype::q4) {
        sum += (w[at] & 15) * x[k] + (w[at] >> 4) * x[kWeightGroup / 2 + k];
      } else {
        sum += static_cast<int8_t>(w[at]) * x[k];
      }
    }
    for (int64_t c = 0; c < t.columns; ++c) {
      float value = static_cast<float>(sums[c]) * HalfAt(w + kLayout.value_bytes, c);
      if constexpr (kLayout.has_min) {
        value += HalfAt(w + kLayout.value_bytes, groups::kPanelColumns + c) * t.x_sums[g];
      }
      y[c] += value * t.x_scales[g];
    }
  }
  std::copy_n(y, t.columns, t.y);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
