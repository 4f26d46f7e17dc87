// Register tiles of int8 products: y[MR x NV·lanes] = (Σ x·w) · x_scale · w_scale + bias …, columns in lanes.
//
// Sums are integers, so every way of adding them has the same bits:
//   dots    vpdpbusd adds four products of (x + 128) as unsigned and w as signed bytes to an int32, at four
//           times the rate of f32; the sums start at -128 · Σ w. ARM's sdot takes x as it is
//   squares smmla of two rows, two columns and eight k
//   pairs   w widened to int16, vpmaddwd adds two products, two sums per column. (vpmaddubsw saturates at
//           int16: two products of unsigned and signed bytes reach 2 · 255 · 127.)
//   plain   elsewhere

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_INT8_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_INT8_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_INT8_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/quantized/groups-inl.h"
#include "multihead/kernels/quantized/int8.h"
#include "multihead/kernels/quantized/integers-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Rows of x are bytes for dots, q + kInt8Zero; on ARM always, elsewhere int16 if there are no dots.
#if HWY_TARGET == HWY_NEON
using Int8 = int8_t;
inline constexpr int kInt8Zero = 0;
#else
using Int8 = uint8_t;
inline constexpr int kInt8Zero = 128;
#endif
HWY_INLINE bool HasByteRows(ByteSums sums) { return HWY_TARGET == HWY_NEON || sums != ByteSums::pairs; }
inline constexpr int64_t kInt8TileRows = MULTIHEAD_BYTE_VECTORS ? 6 : 1;

struct Int8Tile {
  const void* x;     // quantised rows
  int64_t x_stride;  // elements, a multiple of kGroup
  const float* x_scales;
  const int8_t* w;
  int64_t w_step;  // bytes from group to group
  const int32_t* starts;
  const float* w_scales;
  int64_t groups;
  float* y;
  int64_t ldy, last_lanes;
  const float* bias;
  const float* residual;
  bool relu;
};

// The sums of row i, vector j of the tile become y.
HWY_INLINE void StoreInt8(const Int8Tile& t, int64_t i, int64_t j, bool whole, IntVec sum) {
  const TileFloats d;
  const auto mask = hn::FirstN(d, static_cast<size_t>(t.last_lanes));
  const auto load = [&](const float* from)
                        HWY_ATTR { return whole ? hn::LoadU(d, from) : LoadLanes(mask, d, from); };
  const int64_t at = i * t.ldy + j * kLanes;
  TileVec y = hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, t.x_scales[i]));
  y = hn::Mul(y, hn::LoadU(d, t.w_scales + j * kLanes));
  if (t.bias != nullptr) y = hn::Add(y, load(t.bias + j * kLanes));
  if (t.relu) y = Activate<Activation::relu>::Value(d, y);
  if (t.residual != nullptr) y = hn::Add(y, load(t.residual + at));
  whole ? hn::StoreU(y, d, t.y + at) : StoreLanes(y, mask, d, t.y + at);
}

// Calls use(tile, columns) for strips of a panel.
template <int64_t kStrip, class Use>
void EachStrip(const Int8Tile& panel, int64_t columns, const Use& use) {
  for (int64_t c = 0; c < columns; c += kStrip) {
    Int8Tile t = panel;
    t.w += c * int8::kGroup;
    t.w_scales += c;
    t.y += c;
    if (t.bias != nullptr) t.bias += c;
    if (t.residual != nullptr) t.residual += c;
    use(t, std::min(kStrip, columns - c));
  }
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// Columns in the order of memory, two neighbouring sums for each; both halves of the lanes' columns.
template <int MR>
HWY_NOINLINE void PairTile(const Int8Tile& t) {
  const TileInts d;
  const hn::Repartition<int16_t, TileInts> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::Repartition<int64_t, TileInts> d64;
  constexpr int64_t kHalf = kLanes * int8::kGroup / 2;
  IntVec acc[MR][2];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) acc[i][0] = acc[i][1] = hn::Zero(d);
  const auto* x = static_cast<const int16_t*>(t.x);
  const int8_t* w = t.w;
  for (int64_t g = 0; g < t.groups; ++g, x += int8::kGroup, w += t.w_step) {
    const auto low = hn::PromoteTo(d16, hn::LoadU(d8, w)),
               high = hn::PromoteTo(d16, hn::LoadU(d8, w + kHalf));
    // Row by row: 12 sums, two vectors of w and one of x are all the registers there are.
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      int64_t group;
      std::memcpy(&group, x + i * t.x_stride, sizeof(group));
      const auto vx = hn::BitCast(d16, hn::Set(d64, group));
      IntVec none = hn::Zero(d);
      acc[i][0] = InOrder(hn::ReorderWidenMulAccumulate(d, vx, low, acc[i][0], none));
      acc[i][1] = InOrder(hn::ReorderWidenMulAccumulate(d, vx, high, acc[i][1], none));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
    const IntVec even = hn::ConcatEven(d, acc[i][1], acc[i][0]);
    const IntVec odd = hn::ConcatOdd(d, acc[i][1], acc[i][0]);
    StoreInt8(t, i, 0, t.last_lanes == kLanes, hn::Add(even, odd));
  }
}

inline void PairRowsOf(const Int8Tile& t, int64_t rows) {
  switch (rows) {
    case 1:
      return PairTile<1>(t);
    case 2:
      return PairTile<2>(t);
    case 3:
      return PairTile<3>(t);
    case 4:
      return PairTile<4>(t);
    case 5:
      return PairTile<5>(t);
    default:
      return PairTile<6>(t);
  }
}

inline void PairRows(const Int8Tile& t, int64_t rows, int64_t columns) {
  EachStrip<kLanes>(t, columns, [&](Int8Tile& strip, int64_t width) {
    strip.last_lanes = width;
    PairRowsOf(strip, rows);
  });
}
#endif

#if HWY_TARGET == HWY_AVX2
// One row and a panel of all 64 columns: the panel is read once, in order, instead of eight times in strips
// of 32 bytes (30 layers of 576, one thread: 13.6 -> 7.5 ms a token). Products of bytes as in q8. From three
// rows on tiles are faster.
inline constexpr int64_t kWholePanelRows = 2;
inline HWY_NOINLINE void WholePanelRow(const Int8Tile& t) {
  const GroupBytes d;
  constexpr int kVectors = static_cast<int>(int8::kPanelColumns / kLanes);
  constexpr int64_t kAhead = 3072;
  IntVec acc[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) acc[j] = hn::Zero(TileInts());
  const auto* x = static_cast<const int16_t*>(t.x);
  const auto* w = reinterpret_cast<const uint8_t*>(t.w);
  for (int64_t g = 0; g < t.groups; ++g, x += int8::kGroup, w += int8::kPanelColumns * int8::kGroup) {
    const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
    const ByteVec vx{_mm256_broadcastd_epi32(_mm_packs_epi16(words, words))};
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const ByteVec vw = hn::LoadU(d, w + j * 32);
      if (j % 2 == 0) __builtin_prefetch(w + j * 32 + kAhead);
      acc[j] = AddLarge<ByteSums::pairs>(acc[j], AbsoluteBytes(vw), WithSignOf(vw, vx));
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) StoreInt8(t, 0, j, true, acc[j]);
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int64_t kBytesAhead = 2048;

#if HWY_TARGET == HWY_AVX3
template <ByteSums>
HWY_INLINE IntVec AddFour(IntVec sum, IntVec x, IntVec w) {
  return DotBytes(sum, x, w);
}
#endif

template <ByteSums kSums, int MR, int NV, bool kAhead>
HWY_NOINLINE void DotBytesTile(const Int8Tile& t) {
  const TileInts d;
  IntVec acc[MR][NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    const IntVec start = kInt8Zero == 0 ? hn::Zero(d) : hn::LoadU(d, t.starts + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) acc[i][j] = start;
  }
  const auto* HWY_RESTRICT x = static_cast<const uint8_t*>(t.x);
  const int8_t* HWY_RESTRICT w = t.w;
  const int64_t x_stride = t.x_stride;
  for (int64_t g = t.groups; g > 0; --g) {
    IntVec vw[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      vw[j] = hn::LoadU(d, reinterpret_cast<const int32_t*>(w) + j * kLanes);
      if constexpr (kAhead) __builtin_prefetch(w + j * 4 * kLanes + kBytesAhead);
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      int32_t group;
      std::memcpy(&group, x + i * x_stride, sizeof(group));
      const IntVec vx = hn::Set(d, group);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = AddFour<kSums>(acc[i][j], vx, vw[j]);
    }
    x += int8::kGroup;
    w += t.w_step;
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) StoreInt8(t, i, j, j + 1 < NV || t.last_lanes == kLanes, acc[i][j]);
  }
}

template <ByteSums kSums, int NV, bool kAhead>
void DotBytesRows(const Int8Tile& t, int64_t rows) {
  switch (rows) {
    case 1:
      return DotBytesTile<kSums, 1, NV, kAhead>(t);
    case 2:
      return DotBytesTile<kSums, 2, NV, kAhead>(t);
    case 3:
      return DotBytesTile<kSums, 3, NV, kAhead>(t);
    case 4:
      return DotBytesTile<kSums, 4, NV, kAhead>(t);
    case 5:
      return DotBytesTile<kSums, 5, NV, kAhead>(t);
    default:
      return DotBytesTile<kSums, 6, NV, kAhead>(t);
  }
}

// Calls use with the number of vectors of columns, at most four, as a constant.
template <class Use>
void WithVectors(Int8Tile& t, int64_t columns, const Use& use) {
  const int64_t vectors = (columns + kLanes - 1) / kLanes;
  t.last_lanes = columns - (vectors - 1) * kLanes;
  switch (vectors) {
    case 1:
      return use(std::integral_constant<int, 1>());
    case 2:
      return use(std::integral_constant<int, 2>());
    case 3:
      return use(std::integral_constant<int, 3>());
    default:
      return use(std::integral_constant<int, 4>());
  }
}

template <ByteSums kSums>
void DotBytesColumns(Int8Tile& t, int64_t rows, int64_t columns, bool ahead) {
  WithVectors(t, columns, [&](auto vectors) {
    if (vectors == 4 && ahead) return DotBytesRows<kSums, 4, true>(t, rows);
    DotBytesRows<kSums, vectors, false>(t, rows);
  });
}
#endif

#if HWY_TARGET == HWY_NEON
// Two rows and eight k at a time, NV vectors of columns. An odd last row is its own neighbour, and odd last four k
// have zeros for neighbours.
template <int kPairs, int NV>
HWY_NOINLINE void SquaresTile(const Int8Tile& t, int64_t rows) {
  IntVec acc[kPairs][NV][2];
#pragma GCC unroll 4
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j][0] = acc[i][j][1] = hn::Zero(TileInts());
  }
  const auto* x = static_cast<const int8_t*>(t.x);
  const int8_t* w = t.w;
  const int64_t last = (rows - 1) * t.x_stride;
  const auto add = [&](const IntVec(&two)[kPairs], bool whole) HWY_ATTR {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const int8_t* columns = w + j * kLanes * int8::kGroup;
      const int32x4_t a = vreinterpretq_s32_s8(vld1q_s8(columns));
      const int32x4_t b = whole ? vreinterpretq_s32_s8(vld1q_s8(columns + t.w_step)) : vdupq_n_s32(0);
      const IntVec left(vzip1q_s32(a, b)), right(vzip2q_s32(a, b));
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        acc[i][j][0] = SquareOfBytes(acc[i][j][0], two[i], left);
        acc[i][j][1] = SquareOfBytes(acc[i][j][1], two[i], right);
      }
    }
  };
  IntVec two[kPairs];
  for (int64_t g = 0; g + 2 <= t.groups; g += 2, x += 2 * int8::kGroup, w += 2 * t.w_step) {
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i)
      two[i] = TwoRows(x + 2 * i * t.x_stride, x + std::min((2 * i + 1) * t.x_stride, last));
    add(two, true);
  }
  if (t.groups % 2 != 0) {
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      int8_t four[2][8] = {};
      std::memcpy(four[0], x + 2 * i * t.x_stride, int8::kGroup);
      std::memcpy(four[1], x + std::min((2 * i + 1) * t.x_stride, last), int8::kGroup);
      two[i] = TwoRows(four[0], four[1]);
    }
    add(two, false);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const bool whole = j + 1 < NV || t.last_lanes == kLanes;
      IntVec first, second;
      RowsOfSquares(acc[i][j][0], acc[i][j][1], first, second);
      StoreInt8(t, 2 * i, j, whole, first);
      if (2 * i + 1 < rows) StoreInt8(t, 2 * i + 1, j, whole, second);
    }
  }
}

inline void SquaresColumns(Int8Tile& t, int64_t rows, int64_t columns) {
  WithVectors(t, columns, [&](auto vectors) {
    if (rows <= 2) return SquaresTile<1, vectors>(t, rows);
    if (rows <= 4) return SquaresTile<2, vectors>(t, rows);
    SquaresTile<3, vectors>(t, rows);
  });
}
#endif

// One row, `columns` <= kPanelColumns of a panel.
inline HWY_NOINLINE void PlainInt8Row(Int8Tile t, int64_t columns) {
  int32_t sums[int8::kPanelColumns] = {};
  const auto* x = static_cast<const int16_t*>(t.x);
  for (int64_t g = 0; g < t.groups; ++g) {
    const int8_t* w = t.w + g * t.w_step;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t k = 0; k < int8::kGroup; ++k) {
        sums[c] += x[g * int8::kGroup + k] * w[c * int8::kGroup + k];
      }
    }
  }
  for (int64_t c = 0; c < columns; c += kLanes) {
    t.last_lanes = std::min(kLanes, columns - c);
    StoreInt8(t, 0, c / kLanes, t.last_lanes == kLanes, hn::LoadU(TileInts(), sums + c));
  }
}

// At most kInt8TileRows rows times one panel. `ahead`: it comes from memory and is read this once. `t` is not
// copied: fields just written one by one and read as vectors would wait for each other (5 to 10 % of a step).
HWY_INLINE void Int8Rows(Int8Tile& t, int64_t rows, int64_t columns, [[maybe_unused]] ByteSums sums,
                         [[maybe_unused]] bool ahead) {
#if HWY_TARGET == HWY_NEON
  return EachStrip<4 * kLanes>(t, columns, [&](Int8Tile& strip, int64_t width) {
    if (sums == ByteSums::pairs) return DotBytesColumns<ByteSums::pairs>(strip, rows, width, ahead);
    if (sums == ByteSums::squares && rows > 1) return SquaresColumns(strip, rows, width);
    DotBytesColumns<ByteSums::dots>(strip, rows, width, ahead);
  });
#endif
#if HWY_TARGET == HWY_AVX3
  if (sums == ByteSums::dots) return DotBytesColumns<ByteSums::dots>(t, rows, columns, ahead);
#endif
#if HWY_TARGET == HWY_AVX2
  if (rows <= kWholePanelRows && columns == int8::kPanelColumns) {
    for (int64_t i = 0; i < rows; ++i, t.x_scales += 1, t.y += t.ldy) {
      WholePanelRow(t);
      t.x = static_cast<const int16_t*>(t.x) + t.x_stride;
      if (t.residual != nullptr) t.residual += t.ldy;
    }
    return;
  }
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  PairRows(t, rows, columns);
#elif HWY_TARGET != HWY_NEON
  static_cast<void>(rows);  // one
  PlainInt8Row(t, columns);
#endif
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
