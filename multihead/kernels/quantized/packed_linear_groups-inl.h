// Tiles of products with weights in groups of 32 along k, 16 outputs in lanes.
//
//   y = Σ over groups, in order, of (scale · Σ x·w + min · Σ x) · x_scale
//
// where the inner sums are of integers: whatever way adds them has the same bits. The outer one multiplies
// and adds without FMAs, which not every instruction set has.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_PACKED_LINEAR_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_PACKED_LINEAR_GROUPS_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_PACKED_LINEAR_GROUPS_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_PACKED_LINEAR_GROUPS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "multihead/core/dtype.h"
#include "multihead/kernels/quantized/packed_linear_group_sums-inl.h"
#include "multihead/kernels/quantized/packed_linear_groups.h"

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
HWY_INLINE TileVec LoadHalves(const uint8_t* from) {
  const TileFloats d;
  const hn::Rebind<hwy::float16_t, TileFloats> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

template <class Byte>
HWY_INLINE IntVec LoadBytes(const uint8_t* from) {
  const hn::Rebind<Byte, TileInts> d8;
  return hn::PromoteTo(TileInts(), hn::LoadU(d8, reinterpret_cast<const Byte*>(from)));
}

// The parts of a group that belong to some of its lanes.
struct GroupParts {
  const uint8_t *w, *scales, *head;  // values, scales of the group and of its block
};

// sums <- the integers that the scale below multiplies.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_INLINE void WholeSums(const int8_t* x, int64_t x_stride, const GroupParts& at, IntVec (&sums)[MR][NV]) {
  if constexpr (kDtype == WeightDtype::q5_k || kDtype == WeightDtype::q6_k) {
    IntVec other[MR][NV];
    HalfSums<kDtype, kDots, 0, MR, NV>(x, x_stride, at.w, sums);
    HalfSums<kDtype, kDots, 1, MR, NV>(x, x_stride, at.w, other);
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const IntVec first = LoadBytes<int8_t>(at.scales + j * kLanes);
      const IntVec second = LoadBytes<int8_t>(at.scales + groups::kPanelColumns + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        sums[i][j] = kDtype == WeightDtype::q6_k
                         ? hn::Add(hn::Mul(sums[i][j], first), hn::Mul(other[i][j], second))
                         : hn::Add(sums[i][j], other[i][j]);
      }
    }
  } else {
    GroupSums<kDtype == WeightDtype::q8 ? WeightDtype::q8 : WeightDtype::q4, kDots, MR, NV>(x, x_stride, at.w,
                                                                                            sums);
  }
}

template <WeightDtype kDtype>
HWY_INLINE TileVec ScalesOf(const GroupParts& at, int64_t lane) {
  if constexpr (!has_blocks(kDtype)) return LoadHalves(at.scales + 2 * lane);
  const TileVec block = LoadHalves(at.head + 2 * lane);
  if constexpr (kDtype == WeightDtype::q6_k) return block;
  return hn::Mul(block, hn::ConvertTo(TileFloats(), LoadBytes<uint8_t>(at.scales + lane)));
}

// What a group's values lie above zero, or below it in the K formats.
template <WeightDtype kDtype>
HWY_INLINE TileVec MinimaOf(const GroupParts& at, int64_t lane) {
  constexpr int64_t kColumns = groups::kPanelColumns;
  if constexpr (!has_blocks(kDtype)) return LoadHalves(at.scales + 2 * (kColumns + lane));
  return hn::Mul(LoadHalves(at.head + 2 * (kColumns + lane)),
                 hn::ConvertTo(TileFloats(), LoadBytes<uint8_t>(at.scales + kColumns + lane)));
}

// What one group adds to the sums of MR rows and NV vectors.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_INLINE void AddGroup(const GroupTileArgs& t, int64_t g, const GroupParts& at, TileVec (&acc)[MR][NV]) {
  const TileFloats d;
  IntVec sums[MR][NV];
  WholeSums<kDtype, kDots, MR, NV>(t.x + g * kWeightGroup, t.x_stride, at, sums);
#pragma GCC unroll 2
  for (int j = 0; j < NV; ++j) {
    const TileVec scale = ScalesOf<kDtype>(at, j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      TileVec y = hn::Mul(hn::ConvertTo(d, sums[i][j]), scale);
      if constexpr (kDtype == WeightDtype::q4 || kDtype == WeightDtype::q4_k || kDtype == WeightDtype::q5_k) {
        const TileVec min = hn::Mul(MinimaOf<kDtype>(at, j * kLanes), hn::Set(d, t.x_sums[i * t.groups + g]));
        y = has_blocks(kDtype) ? hn::Sub(y, min) : hn::Add(y, min);
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

// Group g of a panel from this lane on.
template <WeightDtype kDtype>
HWY_INLINE GroupParts PartsOf(const uint8_t* panel, int64_t g, int64_t lane) {
  constexpr groups::GroupLayout kLayout(kDtype);
  const uint8_t* w = panel + kLayout.group(g);
  return {w + lane * groups::kNeighbours, w + kLayout.value_bytes + lane * (has_blocks(kDtype) ? 1 : 2),
          panel + kLayout.block(g) + lane * 2};
}

// MR rows times vectors [first, first + NV) of the panel.
template <WeightDtype kDtype, bool kDots, int MR, int NV>
HWY_NOINLINE void GroupTile(const GroupTileArgs& t, int first) {
  constexpr groups::GroupLayout kLayout(kDtype);
  TileVec acc[MR][NV];
  ZeroGroups(acc);
  for (int64_t g = 0; g < t.groups; ++g) {
    const GroupParts at = PartsOf<kDtype>(t.w, g, first * kLanes);
#pragma GCC unroll 16
    for (int64_t line = 0; line < kLayout.bytes; line += 64)
      __builtin_prefetch(at.w + kGroupBytesAhead + line);
    AddGroup<kDtype, kDots, MR, NV>(t, g, at, acc);
  }
  StoreGroups(t, first, acc);
}

// One row times panels `step` apart: streams of memory which the CPU prefetches side by side. One core reads
// 25 GB/s so; 16 in one stream, prefetched or not; 8 streams are no faster (Zen 3, 2026-11).
inline constexpr int64_t kGroupStreams = 4;
template <WeightDtype kDtype, bool kDots>
HWY_NOINLINE void GroupStreams(const GroupTileArgs& t, int64_t step) {
  constexpr groups::GroupLayout kLayout(kDtype);
  const int64_t bytes = step * kLayout.panel(t.groups);
  TileVec acc[kGroupStreams][1][kPanelVectors];
#pragma GCC unroll 8
  for (int64_t s = 0; s < kGroupStreams; ++s) ZeroGroups(acc[s]);
  for (int64_t g = 0; g < t.groups; ++g) {
    const GroupParts at = PartsOf<kDtype>(t.w, g, 0);
#pragma GCC unroll 8
    for (int64_t s = 0; s < kGroupStreams; ++s) {
      const int64_t by = s * bytes;
      AddGroup<kDtype, kDots, 1, kPanelVectors>(t, g, {at.w + by, at.scales + by, at.head + by}, acc[s]);
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

template <WeightDtype kDtype, bool kDots>
void GroupRows(const GroupTileArgs& t, int64_t) {  // one row
  constexpr groups::GroupLayout kLayout(kDtype);
  constexpr int64_t kHalf = kWeightGroup / 2;
  float y[groups::kPanelColumns] = {};
  for (int64_t g = 0; g < t.groups; ++g) {
    const uint8_t *w = t.w + kLayout.group(g), *scales = w + kLayout.value_bytes,
                  *head = t.w + kLayout.block(g);
    const int8_t* x = t.x + g * kWeightGroup;
    for (int64_t c = 0; c < t.columns; ++c) {
      int32_t sums[2] = {};
      for (int64_t k = 0; k < kWeightGroup; ++k) sums[k / kHalf] += groups::value_at(kDtype, w, c, k) * x[k];
      if constexpr (kDtype == WeightDtype::q6_k) {
        for (int64_t h = 0; h < 2; ++h) {
          sums[h] *= static_cast<int8_t>(scales[h * groups::kPanelColumns + c]);
        }
      }
      const groups::GroupScales own = groups::scales_at(kDtype, scales, head, c);
      float value = static_cast<float>(sums[0] + sums[1]) * own.scale;
      if constexpr (kDtype == WeightDtype::q4) value += own.min * t.x_sums[g];
      if constexpr (kDtype == WeightDtype::q4_k || kDtype == WeightDtype::q5_k)
        value -= own.min * t.x_sums[g];
      y[c] += value * t.x_scales[g];
    }
  }
  std::copy_n(y, t.columns, t.y);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
