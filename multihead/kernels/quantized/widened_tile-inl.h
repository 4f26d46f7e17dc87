// f32 rows times a packed panel of bf16 or f16 (half.h), two k at a time: a word of bf16 gives
// both by a shift and a mask. Chains are cut and added as in micro_kernel-inl.h: the bits of gemm() of
// widened weights.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_QUANTIZED_WIDENED_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_QUANTIZED_WIDENED_TILE_INL_H_
#undef MULTIHEAD_KERNELS_QUANTIZED_WIDENED_TILE_INL_H_
#else
#define MULTIHEAD_KERNELS_QUANTIZED_WIDENED_TILE_INL_H_
#endif

#include <algorithm>

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/quantized/packed_linear.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Vectors side by side: of the narrowest panel (16 columns), of several rows, of a single one.
inline constexpr int kNarrowVectors = static_cast<int>(16 / kLanes);
inline constexpr int kRowsVectors = kLanes == 16 ? 4 : kNarrowVectors;
inline constexpr int kRowVectors = kLanes >= 8 ? static_cast<int>(64 / kLanes) : kNarrowVectors;
inline constexpr int kWidenedRows = kLanes == 1 ? 1 : 6;

// Loads kLanes columns of rows k and k + 1 in f32.
HWY_INLINE void LoadWide(const BFloat16* from, int64_t, TileVec& first, TileVec& second) {
  const hn::RebindToUnsigned<TileFloats> bits;
  const auto word = hn::LoadU(bits, reinterpret_cast<const uint32_t*>(from));
  first = hn::BitCast(TileFloats(), hn::ShiftLeft<16>(word));
  second = hn::BitCast(TileFloats(), hn::And(word, hn::Set(bits, 0xFFFF0000u)));
}
HWY_INLINE void LoadWide(const Float16* from, int64_t stride, TileVec& first, TileVec& second) {
  const hn::Rebind<hwy::float16_t, TileFloats> d16;
  const auto load = [&](const Float16* x) HWY_ATTR {
    return hn::PromoteTo(TileFloats(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(x)));
  };
  first = load(from), second = load(from + stride / 2);
}

// Numbers from one column to the next.
template <class Half>
inline constexpr int64_t kColumnStep = std::is_same_v<Half, BFloat16> ? 2 : 1;

// c[MR][NV·lanes] = rows of a times `k` values of the words at b.
template <int MR, int NV, class Half>
HWY_NOINLINE void WidenedTile(const GemmTileArgs& args, const Half* words) {
  const GemmTileArgs t = args;
  const TileFloats d;
  const float* a = t.a;
  bool add = t.add_c;
  for (int64_t left = t.k; left > 0; left -= kChain, add = true) {
    TileVec acc[MR][NV];
    ZeroTile<MR, NV>(acc);
    const int64_t count = std::min(left, kChain);
    for (int64_t k = 0; k < count; k += 2, a += 2, words += t.b_stride) {
      TileVec odd[NV];
      TileVec even[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j)
        LoadWide(words + kColumnStep<Half> * j * kLanes, t.b_stride, even[j], odd[j]);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const TileVec first = hn::Set(d, a[i * t.a_stride]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) acc[i][j] = hn::MulAdd(first, even[j], acc[i][j]);
      }
      if (k + 1 == count) continue;  // the last of an odd number
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const TileVec second = hn::Set(d, a[i * t.a_stride + 1]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) acc[i][j] = hn::MulAdd(second, odd[j], acc[i][j]);
      }
    }
    if (add) AddTile<MR, NV>(t, acc);
    StoreTile<MR, NV>(t, acc);
  }
}

template <int NV, class Half>
void WidenedRows(GemmTileArgs t, const Half* words, int64_t rows) {
  using Function = void (*)(const GemmTileArgs&, const Half*);
  static constexpr Function kTiles[] = {
      &WidenedTile<1, NV, Half>,
      &WidenedTile<std::min(2, kWidenedRows), NV, Half>,
      &WidenedTile<std::min(3, kWidenedRows), NV, Half>,
      &WidenedTile<std::min(4, kWidenedRows), NV, Half>,
      &WidenedTile<std::min(5, kWidenedRows), NV, Half>,
      &WidenedTile<kWidenedRows, NV, Half>,
  };
  for (int64_t height; rows > 0; rows -= height) {
    height = std::min<int64_t>(rows, kWidenedRows);
    kTiles[height - 1](t, words);
    t.a += height * t.a_stride;
    t.c += height * t.c_stride;
  }
}

// All rows of y in the columns of a panel, without the epilogue.
template <class Half>
void MultiplyWidenedPanel(const PackedLinearArgs& p, const Half* words, int64_t column, int64_t width) {
  GemmTileArgs t{};
  t.a = p.x;
  t.a_stride = p.ldx;
  t.b_stride = 2 * width;
  t.c_stride = p.ldy;
  t.k = p.in;
  const int64_t end = std::min(column + width, p.out);
  const auto columns = [&]<int NV>(int64_t first) HWY_ATTR {
    t.c = p.y + first;
    t.last_lanes = std::min(kLanes, end - first - (NV - 1) * kLanes);
    WidenedRows<NV>(t, words + kColumnStep<Half> * (first - column), p.rows);
  };
  int64_t first = column;
  const auto all = [&]<int NV>() HWY_ATTR {
    for (; first + NV * kLanes <= end; first += NV * kLanes) columns.template operator()<NV>(first);
  };
  p.rows == 1 ? all.template operator()<kRowVectors>() : all.template operator()<kRowsVectors>();
  all.template operator()<kNarrowVectors>();
  for (; first < end; first += kLanes) columns.template operator()<1>(first);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
