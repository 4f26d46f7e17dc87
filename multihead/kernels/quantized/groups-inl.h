// Tiles of products with weights in groups of 32 along k, 16 outputs in lanes.
//
//   y = Σ over groups, in order, of (scale · Σ x·w + min · Σ x) · x_scale
//
// where the inner sums are of integers: whatever way adds them has the same bits. The outer one multiplies
// and adds without FMAs, which not every instruction set has.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_GROUPS_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_GROUPS_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_GROUPS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "multihead/core/dtype.h"
#include "multihead/kernels/quantized/group_sums-inl.h"
#include "multihead/kernels/quantized/group_sums_neon-inl.h"
#include "multihead/kernels/quantized/groups.h"

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

#if MULTIHEAD_BYTE_VECTORS
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
template <GroupFormat kFormat, ByteSums kSums, int MR, int NV>
HWY_INLINE void WholeSums(const int8_t* x, int64_t x_stride, const GroupParts& at, IntVec (&sums)[MR][NV]) {
  if constexpr (kHasHalves<kFormat>) {
    IntVec other[MR][NV];
    HalfSums<kFormat, kSums, 0, MR, NV>(x, x_stride, at.w, sums);
    HalfSums<kFormat, kSums, 1, MR, NV>(x, x_stride, at.w, other);
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const IntVec first = LoadBytes<int8_t>(at.scales + j * kLanes);
      const IntVec second = LoadBytes<int8_t>(at.scales + groups::kPanelColumns + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        sums[i][j] = kFormat.has_two_scales()
                         ? hn::Add(hn::Mul(sums[i][j], first), hn::Mul(other[i][j], second))
                         : hn::Add(sums[i][j], other[i][j]);
      }
    }
  } else {
    GroupSums<kFormat, kSums, MR, NV>(x, x_stride, at.w, sums);
  }
}

template <GroupFormat kFormat>
HWY_INLINE TileVec ScalesOf(const GroupParts& at, int64_t lane) {
  if constexpr (!kFormat.in_blocks) return LoadHalves(at.scales + 2 * lane);
  const TileVec block = LoadHalves(at.head + 2 * lane);
  if constexpr (kFormat.has_two_scales()) return block;
  return hn::Mul(block, hn::ConvertTo(TileFloats(), LoadBytes<uint8_t>(at.scales + lane)));
}

// The minima, to be added, in blocks to be subtracted.
template <GroupFormat kFormat>
HWY_INLINE TileVec MinimaOf(const GroupParts& at, int64_t lane) {
  constexpr int64_t kColumns = groups::kPanelColumns;
  if constexpr (!kFormat.in_blocks) return LoadHalves(at.scales + 2 * (kColumns + lane));
  return hn::Mul(LoadHalves(at.head + 2 * (kColumns + lane)),
                 hn::ConvertTo(TileFloats(), LoadBytes<uint8_t>(at.scales + kColumns + lane)));
}

// Adds one group's products to the sums of MR rows and NV vectors.
template <GroupFormat kFormat, ByteSums kSums, int MR, int NV>
HWY_INLINE void AddGroup(const GroupTileArgs& t, int64_t g, const GroupParts& at, TileVec (&acc)[MR][NV]) {
  const TileFloats d;
  IntVec sums[MR][NV];
  WholeSums<kFormat, kSums, MR, NV>(t.x + g * kWeightGroup, t.x_stride, at, sums);
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    const TileVec scale = ScalesOf<kFormat>(at, j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      TileVec sum = hn::ConvertTo(d, sums[i][j]);
      if constexpr (kShiftsWeight<kFormat.bits, kSums, MR>)  // integers below 2^24: exact
        sum = hn::NegMulAdd(hn::Set(d, t.x_sums[i * t.groups + g]), hn::Set(d, 128.0f), sum);
      TileVec y = hn::Mul(sum, scale);
      if constexpr (kFormat.has_min) {
        const TileVec min =
            hn::Mul(MinimaOf<kFormat>(at, j * kLanes), hn::Set(d, t.x_sums[i * t.groups + g]));
        y = kFormat.in_blocks ? hn::Sub(y, min) : hn::Add(y, min);
      }
      acc[i][j] = hn::Add(acc[i][j], hn::Mul(y, hn::Set(d, t.x_scales[i * t.groups + g])));
    }
  }
}

template <int MR, int NV>
HWY_INLINE void StoreGroups(const GroupTileArgs& t, int first, const TileVec (&acc)[MR][NV]) {
  const TileFloats d;
#pragma GCC unroll 4
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
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::Zero(TileFloats());
  }
}

// Group g of a panel from this lane on.
template <GroupFormat kFormat>
HWY_INLINE GroupParts PartsOf(const uint8_t* panel, int64_t g, int64_t lane) {
  constexpr groups::GroupLayout kLayout(kFormat);
  const uint8_t* w = panel + kLayout.group(g);
  return {w + lane * groups::kNeighbours, w + kLayout.value_bytes + lane * (kFormat.in_blocks ? 1 : 2),
          panel + kLayout.block(g) + lane * 2};
}

// Streams of one row, and of more by dots.
inline constexpr int kGroupStreams = 4, kManyRowsStreams = HWY_TARGET == HWY_AVX3 ? 2 : 1;

// MR rows times vectors [first, first + NV) of panels `step` apart: streams of memory which the CPU prefetches
// side by side. One core reads 25 GB/s so, 16 in one stream, prefetched or not; 8 streams are no faster (Zen 3,
// 2026-11). On a Xeon with AMX two streams, prefetched, reach 19 GB/s, one 13.
template <GroupFormat kFormat, ByteSums kSums, int MR, int NV, int kStreams>
HWY_NOINLINE void GroupTile(const GroupTileArgs& t, int first, int64_t step) {
  constexpr groups::GroupLayout kLayout(kFormat);
  const int64_t bytes = step * kLayout.panel(t.groups);
  TileVec acc[kStreams][MR][NV];
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s) ZeroGroups(acc[s]);
  for (int64_t g = 0; g < t.groups; ++g) {
    const GroupParts at = PartsOf<kFormat>(t.w, g, first * kLanes);
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      // Else GCC keeps every x for the next stream, on the stack.
      if constexpr (MR > 2) __asm__ volatile("" ::: "memory");
      const int64_t by = s * bytes;
#pragma GCC unroll 16
      for (int64_t line = 0; kStreams < kGroupStreams && line < kLayout.bytes; line += 64)
        __builtin_prefetch(at.w + by + kGroupBytesAhead + line);
      AddGroup<kFormat, kSums, MR, NV>(t, g, {at.w + by, at.scales + by, at.head + by}, acc[s]);
    }
  }
  GroupTileArgs to = t;
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s, to.y += step * groups::kPanelColumns) StoreGroups(to, first, acc[s]);
}

// One or two rows pass whole groups; more of them go through the panel, then in L1, once a vector.
template <GroupFormat kFormat, ByteSums kSums, int MR, int kStreams>
HWY_INLINE void GroupRowsOf(const GroupTileArgs& t, int64_t step) {
  constexpr int NV = MR <= 2 ? kPanelVectors : kVectorsOfManyRows;
  for (int j = 0; j < kPanelVectors; j += NV) GroupTile<kFormat, kSums, MR, NV, kStreams>(t, j, step);
}

template <GroupFormat kFormat, ByteSums kSums, int kStreams>
void GroupRows(const GroupTileArgs& t, int64_t rows, int64_t step) {
  if (rows == 1) return GroupRowsOf<kFormat, kSums, 1, kStreams>(t, step);
  if constexpr (kStreams <= 2) {
    switch (rows) {
      case 2:
        return GroupRowsOf<kFormat, kSums, 2, kStreams>(t, step);
      case 3:
        return GroupRowsOf<kFormat, kSums, 3, kStreams>(t, step);
      case 4:
        return GroupRowsOf<kFormat, kSums, 4, kStreams>(t, step);
    }
#if HWY_TARGET == HWY_AVX3
    switch (rows) {
      case 5:
        return GroupRowsOf<kFormat, kSums, 5, kStreams>(t, step);
      case 6:
        return GroupRowsOf<kFormat, kSums, 6, kStreams>(t, step);
      case 7:
        return GroupRowsOf<kFormat, kSums, 7, kStreams>(t, step);
      default:
        return GroupRowsOf<kFormat, kSums, 8, kStreams>(t, step);
    }
#endif
  }
}
#else
inline constexpr int64_t kGroupTileRows = 1;
inline constexpr int kGroupStreams = 1, kManyRowsStreams = 1;

template <GroupFormat kFormat, ByteSums kSums, int kStreams>
void GroupRows(const GroupTileArgs& t, int64_t, int64_t) {  // one row and panel
  constexpr groups::GroupLayout kLayout(kFormat);
  constexpr int64_t kHalf = kWeightGroup / 2;
  float y[groups::kPanelColumns] = {};
  for (int64_t g = 0; g < t.groups; ++g) {
    const uint8_t *w = t.w + kLayout.group(g), *scales = w + kLayout.value_bytes,
                  *head = t.w + kLayout.block(g);
    const int8_t* x = t.x + g * kWeightGroup;
    for (int64_t c = 0; c < t.columns; ++c) {
      int32_t sums[2] = {};
      for (int64_t k = 0; k < kWeightGroup; ++k) sums[k / kHalf] += groups::value_at(kFormat, w, c, k) * x[k];
      if constexpr (kFormat.has_two_scales()) {
        for (int64_t h = 0; h < 2; ++h) {
          sums[h] *= static_cast<int8_t>(scales[h * groups::kPanelColumns + c]);
        }
      }
      const groups::GroupScales own = groups::scales_at(kFormat, scales, head, c);
      float value = static_cast<float>(sums[0] + sums[1]) * own.scale;
      if constexpr (kFormat.has_min) value += own.min * t.x_sums[g];
      y[c] += value * t.x_scales[g];
    }
  }
  std::copy_n(y, t.columns, t.y);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
