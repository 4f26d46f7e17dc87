#include "multihead/kernels/amx/tile_blocks-inl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "hwy/base.h"
#include "multihead/core/dtype.h"
#include "multihead/kernels/amx/tile_emulation-inl.h"
#include "multihead/kernels/amx/tile_target-inl.h"

namespace multihead::kernels {
namespace {

template <int kParts, bool kSwapped>
constexpr PartProduct part_product(int n) {
  const PartProduct p = kProducts<kParts>[n];
  return kSwapped ? PartProduct{p.y, p.x} : p;
}

// The operands of one step.
struct StepOf {
  const char *x, *y;
  int64_t x_row, x_tile, y_row, y_tile;

  HWY_INLINE explicit StepOf(const TileBlock& b)
      : x(b.x.first), y(b.y.first), x_row(b.x.row), x_tile(b.x.tile), y_row(b.y.row), y_tile(b.y.tile) {
    elsewhere(b, 0);
  }
  HWY_INLINE void next(const TileBlock& b, int64_t step) {
    x += b.x.step, y += b.y.step;
    elsewhere(b, step);
  }

 private:
  HWY_INLINE void elsewhere(const TileBlock& b, int64_t step) {
    if (HWY_LIKELY(step + 1 < b.steps)) return;
    if (b.x.last != nullptr) x = b.x.last, x_row = 64, x_tile = kTileBytes;
    if (b.y.last != nullptr) y = b.y.last, y_row = 64, y_tile = kTileBytes;
  }
};

template <int kParts>
void emulate(const char* x, int64_t x_row, const char* y, int64_t y_row, float* sums, int64_t stride) {
  kParts == 0 ? emulate_byte_tile(x, x_row, y, y_row, sums, stride)
              : emulate_tile(x, x_row, y, y_row, sums, stride);
}

template <int kParts, bool kSwapped>
void multiply_emulated(const TileBlock& b, float* sums) {
  for (int64_t r = 0; r < kBlockLines; ++r) {
    if (b.from != nullptr) std::copy_n(b.from + r * b.from_stride, kBlockLines, sums + r * kBlockLines);
    if (b.from == nullptr) std::fill_n(sums + r * kBlockLines, kBlockLines, 0.0f);
  }
  StepOf at(b);
  for (int64_t s = 0; s < b.steps; ++s) {
    if (s > 0) at.next(b, s);
    for (int n = 0; n < static_cast<int>(std::size(kProducts<kParts>)); ++n) {
      const PartProduct p = part_product<kParts, kSwapped>(n);
      for (int64_t tile = 0; tile < 4; ++tile) {
        const int64_t i = tile / 2, j = tile % 2;
        emulate<kParts>(at.x + p.x * b.x.part + i * at.x_tile, at.x_row,
                        at.y + p.y * b.y.part + j * at.y_tile, at.y_row,
                        sums + (i * kBlockLines + j) * kAmxLines, kBlockLines);
      }
    }
  }
}

void finish_emulated(const TileRows& f) {
  for (int64_t r = 0; r < f.rows; ++r) {
    char* row = static_cast<char*>(f.to) + r * f.stride;
    for (int64_t c = 0; c < f.columns; ++c) {
      float x = f.sums[r * f.sums_stride + c];
      if (f.x_scales != nullptr)
        x = static_cast<float>(std::bit_cast<int32_t>(x)) * f.x_scales[r] * f.y_scales[c];
      if (f.bias != nullptr) x += f.bias[c];
      if (f.bf16) {
        const BFloat16 rounded(std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x);
        std::memcpy(row + 2 * c, &rounded, sizeof(rounded));
      } else {
        std::memcpy(row + 4 * c, &x, sizeof(x));
      }
    }
  }
}

}  // namespace

#if MH_TILES
HWY_PUSH_ATTRIBUTES("avx,avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,amx-int8")
namespace tiles {
namespace {

// Adds to rows of sums and stores them, two vectors of each at a time.
enum class Sums { f32, int32 };
template <Sums kSums, bool kBf16, bool kBias>
struct Rows {
  static constexpr bool kBytes = kSums == Sums::int32;

  // Columns beyond the last one are left out.
  template <bool kWhole>
  static HWY_INLINE void Finish(const TileRows& f, const float* sums, int64_t row, char* to,
                                __mmask32 columns) {
    const auto low = static_cast<__mmask16>(columns), high = static_cast<__mmask16>(columns >> 16);
    __m512 a = _mm512_load_ps(sums), b = _mm512_load_ps(sums + kAmxLines);
    if constexpr (kBytes) {
      const __m512 scale = _mm512_set1_ps(f.x_scales[row]);
      a = Scaled<kWhole>(a, scale, f.y_scales, low),
      b = Scaled<kWhole>(b, scale, f.y_scales + kAmxLines, high);
    }
    if constexpr (kBias) {
      a = _mm512_add_ps(a, Load<kWhole>(f.bias, low));
      b = _mm512_add_ps(b, Load<kWhole>(f.bias + kAmxLines, high));
    }
    if constexpr (kBf16) {
      const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
      kWhole ? _mm512_storeu_si512(to, rounded) : _mm512_mask_storeu_epi16(to, columns, rounded);
    } else if constexpr (kWhole) {
      _mm512_storeu_ps(to, a), _mm512_storeu_ps(to + 64, b);
    } else {
      _mm512_mask_storeu_ps(to, low, a), _mm512_mask_storeu_ps(to + 64, high, b);
    }
  }

  static void FinishFrom(const TileRows& f, int64_t r) {
    const __mmask32 columns = f.columns >= kBlockLines ? ~0U : (1U << f.columns) - 1;
    for (; r < f.rows; ++r)
      Finish<false>(f, f.sums + r * f.sums_stride, r, static_cast<char*>(f.to) + r * f.stride, columns);
  }

 private:
  template <bool kWhole>
  static HWY_INLINE __m512 Load(const float* from, __mmask16 columns) {
    return kWhole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(columns, from);
  }
  template <bool kWhole>
  static HWY_INLINE __m512 Scaled(__m512 sums, __m512 scale, const float* scales, __mmask16 columns) {
    // Not _mm512_cvtepi32_ps(), about which GCC 12 warns.
    const __m512 x = __builtin_convertvector(reinterpret_cast<__v16si>(sums), __v16sf);
    return _mm512_mul_ps(_mm512_mul_ps(x, scale), Load<kWhole>(scales, columns));
  }
};

// Calls use(Rows of the kind).
template <class Use>
HWY_INLINE void WithKind(const TileRows& f, bool bytes, const Use& use) {
  if (bytes)
    return f.bias != nullptr ? use(Rows<Sums::int32, false, true>()) : use(Rows<Sums::int32, false, false>());
  if (f.bf16)
    return f.bias != nullptr ? use(Rows<Sums::f32, true, true>()) : use(Rows<Sums::f32, true, false>());
  f.bias != nullptr ? use(Rows<Sums::f32, false, true>()) : use(Rows<Sums::f32, false, false>());
}

void FinishRows(const TileRows& f) {
  WithKind(f, f.x_scales != nullptr, [&](auto kind) { decltype(kind)::FinishFrom(f, 0); });
}

// Adds the product of tiles of bf16 or, without parts, of int8.
#define MH_PRODUCT(c, x, y)    \
  if constexpr (kParts == 0) { \
    _tile_dpbssd(c, x, y);     \
  } else {                     \
    _tile_dpbf16ps(c, x, y);   \
  }

// The products of a step from one of them on. Registers 0-3: C, 4-5: X, 6-7: Y. Y, which is used once while a
// panel of X is in L1, goes past it.
template <int kParts, bool kSwapped, int kProduct>
HWY_INLINE void Multiply(const StepOf& at, const TileBlock& b) {
  constexpr int kLast = static_cast<int>(std::size(kProducts<kParts>)) - 1;
  if constexpr (kProduct <= kLast) {
    constexpr PartProduct kPair = part_product<kParts, kSwapped>(kProduct);
    constexpr PartProduct kBefore = part_product<kParts, kSwapped>(std::max(kProduct - 1, 0));
    constexpr bool kNewX = kProduct == 0 || kPair.x != kBefore.x,
                   kNewY = kProduct == 0 || kPair.y != kBefore.y;
    const char *x = at.x + kPair.x * b.x.part, *y = at.y + kPair.y * b.y.part;
    if constexpr (kNewX) _tile_loadd(4, x, at.x_row);
    if constexpr (kNewY) _tile_stream_loadd(6, y, at.y_row);
    if constexpr (kNewY) _tile_stream_loadd(7, y + at.y_tile, at.y_row);
    if constexpr (kNewX) _tile_loadd(5, x + at.x_tile, at.x_row);
    MH_PRODUCT(0, 4, 6);
    MH_PRODUCT(1, 4, 7);
    MH_PRODUCT(2, 5, 6);
    MH_PRODUCT(3, 5, 7);
    Multiply<kParts, kSwapped, kProduct + 1>(at, b);
  }
}

// Stores a tile of the block before, and starts one of this block.
#define MH_NEXT_SUMS(tile, at)                                                               \
  if (previous != nullptr) _tile_stored(tile, previous + (at), 4 * kBlockLines);             \
  if (b.from != nullptr) {                                                                   \
    _tile_stream_loadd(tile, from + (at) / kBlockLines * b.from_stride + (at) % kBlockLines, \
                       4 * b.from_stride);                                                   \
  } else {                                                                                   \
    _tile_zero(tile);                                                                        \
  }

template <int kParts, bool kSwapped, class Kind>
HWY_NOINLINE void MultiplyBlock(const TileBlock& b, float* previous, const TileRows& f) {
  constexpr PartProduct kFirst = part_product<kParts, kSwapped>(0);
  constexpr int64_t kRight = kAmxLines, kBelow = kAmxLines * kBlockLines;
  const float* from = b.from;
  StepOf at(b);
  const char *x = at.x + kFirst.x * b.x.part, *y = at.y + kFirst.y * b.y.part;
  __asm__ volatile("" ::: "memory");
  _tile_loadd(4, x, at.x_row);
  _tile_stream_loadd(6, y, at.y_row);
  MH_NEXT_SUMS(0, 0)
  MH_PRODUCT(0, 4, 6);
  _tile_stream_loadd(7, y + at.y_tile, at.y_row);
  MH_NEXT_SUMS(1, kRight)
  MH_PRODUCT(1, 4, 7);
  _tile_loadd(5, x + at.x_tile, at.x_row);
  MH_NEXT_SUMS(2, kBelow)
  MH_PRODUCT(2, 5, 6);
  MH_NEXT_SUMS(3, kBelow + kRight)
  MH_PRODUCT(3, 5, 7);
  __asm__ volatile("" ::: "memory");  // the compiler does not know what the tiles have stored
  Multiply<kParts, kSwapped, 1>(at, b);
  const int64_t whole = f.columns == kBlockLines ? f.rows : 0;
  const float* sums = f.sums;
  char* to = static_cast<char*>(f.to);
  const char* line = b.fetch;
  int64_t row = 0, lines = b.fetch_lines;
  for (int64_t s = 1; s < b.steps; ++s) {
    at.next(b, s);
    Multiply<kParts, kSwapped, 0>(at, b);
    for (const int64_t end = std::min(row + b.share, whole); row < end; ++row) {
      Kind::template Finish<true>(f, sums, row, to, ~0U);
      sums += kBlockLines, to += f.stride;
    }
    for (int64_t n = std::min(lines, b.share); n > 0; --n, --lines, line += b.fetch_stride)
      _mm_prefetch(line, _MM_HINT_T1);
  }
  if (row < f.rows) Kind::FinishFrom(f, row);
}
#undef MH_NEXT_SUMS

template <int kParts, bool kSwapped>
void MultiplyAny(const TileBlock& b, float* previous, const TileRows& f) {
  WithKind(f, kParts == 0, [&](auto kind) {
    using Kind = decltype(kind);
    constexpr bool kRounds = std::is_same_v<Kind, Rows<Sums::f32, true, true>> ||
                             std::is_same_v<Kind, Rows<Sums::f32, true, false>>;
    // Products of several parts are f32.
    if constexpr (Kind::kBytes == (kParts == 0) && !(kRounds && kParts > 1))
      MultiplyBlock<kParts, kSwapped, Kind>(b, previous, f);
  });
}

HWY_NOINLINE void StoreSums(float* to) {
  _tile_stored(0, to, 4 * kBlockLines);
  _tile_stored(1, to + kAmxLines, 4 * kBlockLines);
  _tile_stored(2, to + kAmxLines * kBlockLines, 4 * kBlockLines);
  _tile_stored(3, to + kAmxLines * kBlockLines + kAmxLines, 4 * kBlockLines);
  __asm__ volatile("" ::: "memory");
}

// Registers 0-3: C, 4: X, 6 and 7 in turn: Y.
template <int kParts, int kTiles>
HWY_NOINLINE void MultiplyWide(const TileBlock& b, float* to) {
  constexpr int64_t kStride = 4 * kWideStride;
  __asm__ volatile("" ::: "memory");
  _tile_zero(0);
  if constexpr (kTiles > 1) _tile_zero(1);
  if constexpr (kTiles > 2) _tile_zero(2);
  if constexpr (kTiles > 3) _tile_zero(3);
  StepOf at(b);
  for (int64_t s = 0; s < b.steps; ++s) {
    if (s > 0) at.next(b, s);
    const char* y = at.y;
    _tile_loadd(4, at.x, at.x_row);
    _tile_loadd(6, y, at.y_row);
    MH_PRODUCT(0, 4, 6);
    if constexpr (kTiles > 1) {
      _tile_loadd(7, y + at.y_tile, at.y_row);
      MH_PRODUCT(1, 4, 7);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(6, y + 2 * at.y_tile, at.y_row);
      MH_PRODUCT(2, 4, 6);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(7, y + 3 * at.y_tile, at.y_row);
      MH_PRODUCT(3, 4, 7);
    }
  }
  _tile_stored(0, to, kStride);
  if constexpr (kTiles > 1) _tile_stored(1, to + kAmxLines, kStride);
  if constexpr (kTiles > 2) _tile_stored(2, to + 2 * kAmxLines, kStride);
  if constexpr (kTiles > 3) _tile_stored(3, to + 3 * kAmxLines, kStride);
  __asm__ volatile("" ::: "memory");
}

}  // namespace
}  // namespace tiles
HWY_POP_ATTRIBUTES
#endif

void finish_tile_rows(const TileRows& rows, [[maybe_unused]] TileUnit unit) {
#if MH_TILES
  if (unit == TileUnit::amx) return tiles::FinishRows(rows);
#endif
  finish_emulated(rows);
}

template <int kParts, bool kSwapped>
void TileBlocks::multiply_as(const TileBlock& block, float* previous, const TileRows& rows) {
#if MH_TILES
  if (unit_ == TileUnit::amx) return tiles::MultiplyAny<kParts, kSwapped>(block, previous, rows);
#endif
  if (previous != nullptr) store(previous);
  multiply_emulated<kParts, kSwapped>(block, emulated_);
  finish_emulated(rows);
}

void TileBlocks::multiply(const TileBlock& block, float* previous, const TileRows& rows) {
  if (parts_ == 0) return multiply_as<0, false>(block, previous, rows);
  if (parts_ == 1) return multiply_as<1, false>(block, previous, rows);
  if (parts_ == 2)
    return swapped_ ? multiply_as<2, true>(block, previous, rows)
                    : multiply_as<2, false>(block, previous, rows);
  swapped_ ? multiply_as<3, true>(block, previous, rows) : multiply_as<3, false>(block, previous, rows);
}

void TileBlocks::store(float* to) {
#if MH_TILES
  if (unit_ == TileUnit::amx) return tiles::StoreSums(to);
#endif
  std::copy_n(emulated_, kBlockSums, to);
}

template <int kParts>
void TileBlocks::multiply_wide_as(const TileBlock& block, int tiles, float* to) {
#if MH_TILES
  if (unit_ == TileUnit::amx) {
    if (tiles == 1) return tiles::MultiplyWide<kParts, 1>(block, to);
    if (tiles == 2) return tiles::MultiplyWide<kParts, 2>(block, to);
    return tiles == 3 ? tiles::MultiplyWide<kParts, 3>(block, to) : tiles::MultiplyWide<kParts, 4>(block, to);
  }
#endif
  for (int64_t r = 0; r < kAmxLines; ++r) std::fill_n(to + r * kWideStride, tiles * kAmxLines, 0.0f);
  StepOf at(block);
  for (int64_t s = 0; s < block.steps; ++s) {
    if (s > 0) at.next(block, s);
    for (int64_t j = 0; j < tiles; ++j)
      emulate<kParts>(at.x, at.x_row, at.y + j * at.y_tile, at.y_row, to + j * kAmxLines, kWideStride);
  }
}

void TileBlocks::multiply_wide(const TileBlock& block, int tiles, float* to) {
  parts_ == 0 ? multiply_wide_as<0>(block, tiles, to) : multiply_wide_as<1>(block, tiles, to);
}

}  // namespace multihead::kernels
