// The inner loops of attention's gradients on tiles.
#include "multihead/kernels/attention/engines/tile_gradients-inl.h"

#include <algorithm>

#include "multihead/kernels/attention/engines/tile_vectors-inl.h"

#if MH_TILES
MH_PUSH_TILES
namespace multihead::kernels {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace)

const char* strip_of(const TileRowProduct& x, int strip) {
  return x.b + strip / 2 * x.parts * x.steps * kStripBytes + strip % 2 * kTileBytes;
}

StepOperand rows_of(const TileRowProduct& x) {
  return {x.a, x.a_stride, 16 * x.a_stride, x.a_part, 2 * x.a_part};
}
StepOperand columns_of(const TileRowProduct& x, int strip) {
  const int64_t part = x.steps * kStripBytes;
  return {strip_of(x, strip), kRowBytes, kTileBytes, part, 2 * part};
}

// Registers 0 and 1: sums; 2-5: rows; 6, 7: columns.
template <int kSteps>
HWY_NOINLINE void ProductOfShort(const TileRowProduct& x) {
  constexpr int64_t kRow = kLaneStride * 4;
  const char* below = x.a + 16 * x.a_stride;
  MH_TILE_BARRIER;
  _tile_loadd(2, x.a, x.a_stride);
  _tile_loadd(4, below, x.a_stride);
  if constexpr (kSteps == 2) {
    _tile_loadd(3, x.a + kRowBytes, x.a_stride);
    _tile_loadd(5, below + kRowBytes, x.a_stride);
  }
  for (int j = 0; j < x.strips; ++j) {
    const char* b = strip_of(x, j);
    float* to = x.to + 16 * j;
    _tile_loadd(6, b, kRowBytes);
    _tile_zero(0);
    _tile_dpbf16ps(0, 2, 6);
    if constexpr (kSteps == 2) {
      _tile_loadd(7, b + kStripBytes, kRowBytes);
      _tile_dpbf16ps(0, 3, 7);
    }
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 6);
    _tile_stored(0, to, kRow);
    if constexpr (kSteps == 2) _tile_dpbf16ps(1, 5, 7);
    _tile_stored(1, to + 16 * kLaneStride, kRow);
  }
  MH_TILE_BARRIER;
}

template <int kParts>
HWY_NOINLINE void ProductOfAny(const TileRowProduct& x) {
  constexpr int64_t kRow = kLaneStride * 4;
  MH_TILE_BARRIER;
  for (int j = 0; j < x.strips; j += 2) {
    StepOperand a = rows_of(x), b = columns_of(x, j);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < x.steps; ++step, a.at += kRowBytes, b.at += kStripBytes)
      AddStep<kParts, 2>(a, b);
    float *to = x.to + 16 * j, *to_below = to + 16 * kLaneStride;
    _tile_stored(0, to, kRow);
    _tile_stored(1, to + 16, kRow);
    _tile_stored(2, to_below, kRow);
    _tile_stored(3, to_below + 16, kRow);
  }
  MH_TILE_BARRIER;
}

void ProductEmulated(const TileRowProduct& x) {
  for (int r = 0; r < 32; ++r) std::fill_n(x.to + r * kLaneStride, 16 * x.strips, 0.0f);
  for (int j = 0; j < x.strips; j += 2) {
    StepOperand a = rows_of(x), b = columns_of(x, j);
    for (int64_t step = 0; step < x.steps; ++step, a.at += kRowBytes, b.at += kStripBytes)
      EmulateStep(x.parts, 2, a, b, x.to + 16 * j, kLaneStride, 16 * kLaneStride, 16);
  }
}

template <int kParts>
HWY_NOINLINE void SumOnTiles(const TileSum& x) {
  char *c = x.c, *below = c + x.c_row;
  StepOperand a{x.a, kRowBytes, x.a_row, x.a_part, 2 * x.a_part};
  StepOperand b{x.b, kRowBytes, x.b_column, x.b_part, 2 * x.b_part};
  MH_TILE_BARRIER;
  _tile_loadd(0, c, kRowBytes);
  _tile_loadd(1, c + x.c_column, kRowBytes);
  _tile_loadd(2, below, kRowBytes);
  _tile_loadd(3, below + x.c_column, kRowBytes);
#pragma GCC unroll 2
  for (int64_t i = 0; i < x.steps; ++i, a.at += x.a_step, b.at += x.b_step) AddStep<kParts, 2>(a, b);
  _tile_stored(0, c, kRowBytes);
  _tile_stored(1, c + x.c_column, kRowBytes);
  _tile_stored(2, below, kRowBytes);
  _tile_stored(3, below + x.c_column, kRowBytes);
  MH_TILE_BARRIER;
}

void SumEmulated(const TileSum& x) {
  StepOperand a{x.a, kRowBytes, x.a_row, x.a_part, 2 * x.a_part};
  StepOperand b{x.b, kRowBytes, x.b_column, x.b_part, 2 * x.b_part};
  for (int64_t i = 0; i < x.steps; ++i, a.at += x.a_step, b.at += x.b_step)
    EmulateStep(x.parts, 2, a, b, reinterpret_cast<float*>(x.c), kAmxLines, x.c_row / 4, x.c_column / 4);
}

// Rows `row` and `row` + 1 of the 32 keys, queries [32 step, 32 step + 32).
struct WeightPlaces {
  __m512i low, high;
  WeightPlaces() : low(_mm512_load_si512(kPairOrder.low)), high(_mm512_load_si512(kPairOrder.high)) {}

  template <int kParts>
  HWY_INLINE void Store(const TileWeights& to, int row, int step, const __m512i (&first)[kParts],
                        const __m512i (&second)[kParts]) const {
    char* at = to.rows + (row / 16 * kStripTiles + step) * kTileBytes + row % 16 * kRowBytes;
    char* column = to.columns + 2 * step * kTileBytes + row / 2 * kRowBytes;
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part, at += to.row_part, column += to.column_part) {
      _mm512_store_si512(at, first[part]), _mm512_store_si512(at + kRowBytes, second[part]);
      if (to.columns == nullptr) continue;
      _mm512_store_si512(column, _mm512_permutex2var_epi16(first[part], low, second[part]));
      _mm512_store_si512(column + kTileBytes, _mm512_permutex2var_epi16(first[part], high, second[part]));
    }
  }
};

template <bool kAmx, int kParts>
void PackWeights(const float* from, int keys, int queries, const TileWeights& to) {
  const WeightPlaces places;
  for (int step = 0; 32 * step < queries; ++step) {
    const __mmask32 there = FirstBits(std::min(queries - 32 * step, 32));
    const auto low = static_cast<__mmask16>(there), high = static_cast<__mmask16>(there >> 16);
    for (int row = 0; row < kTileStep; row += 2) {
      __m512i x[2][kParts];
      for (int i = 0; i < 2; ++i) {
        const float* at = from + (row + i) * kLaneStride + 32 * step;
        if (row + i < keys) {
          PartsOf<kAmx>(_mm512_maskz_loadu_ps(high, at + 16), _mm512_maskz_loadu_ps(low, at), x[i]);
        } else {
          std::fill_n(x[i], kParts, _mm512_setzero_si512());
        }
      }
      places.Store(to, row, step, x[0], x[1]);
    }
  }
}

HWY_INLINE __mmask16 Seen(const int32_t* lo, const int32_t* hi, int key) {
  const __m512i k = _mm512_set1_epi32(key);
  return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(_mm512_load_si512(lo), k),
                                      _mm512_load_si512(hi), k);
}

template <bool kAmx, bool kMasked, int kParts>
HWY_NOINLINE void GradientRows(const TileGradientRows& x) {
  const WeightPlaces places;
  const __m512 factor = _mm512_set1_ps(x.factor);
  for (int step = 0; step < x.steps; ++step) {
    const int q = 32 * step;
    const __m512 lse[2] = {_mm512_loadu_ps(x.lse + q), _mm512_loadu_ps(x.lse + q + 16)};
    const __m512 delta[2] = {_mm512_loadu_ps(x.delta + q), _mm512_loadu_ps(x.delta + q + 16)};
    for (int row = 0; row < kTileStep; row += 2) {
      __m512i p[2][kParts], ds[2][kParts];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        __m512 power[2], gradient[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          const int64_t at = (row + i) * kLaneStride + q + 16 * j;
          const __m512 y = _mm512_fmsub_ps(_mm512_loadu_ps(x.s + at), factor, lse[j]);
          const __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(x.dp + at), delta[j]);
          if constexpr (kMasked) {
            const __mmask16 seen = Seen(x.lo + q + 16 * j, x.hi + q + 16 * j, x.key + row + i);
            power[j] = Power<true, (kParts > 1)>(y, seen);
            gradient[j] = _mm512_maskz_mul_ps(seen, power[j], difference);
          } else {
            power[j] = Power<false, (kParts > 1)>(y, 0);
            gradient[j] = _mm512_mul_ps(power[j], difference);
          }
        }
        PartsOf<kAmx>(power[1], power[0], p[i]), PartsOf<kAmx>(gradient[1], gradient[0], ds[i]);
      }
      places.Store(x.p, row, step, p[0], p[1]);
      places.Store(x.ds, row, step, ds[0], ds[1]);
    }
  }
}

}  // namespace

void pack_tile_transposed(const TileSource& from, char* to, TileUnit unit) {
  alignas(64) char pairs[kMostParts * kStripBytes];
  const int64_t steps = amx_steps(from.dim);
  for (int64_t step = 0; step < steps; ++step) {
    TileSource some = from;
    some.rows += 64 * (from.bf16 ? step : 2 * step), some.dim = std::min<int64_t>(from.dim - 32 * step, 32);
    pack_tile_columns(some, pairs, unit);
    for (int i = 0; i < 2 * from.parts; ++i) {
      char* tile = to + (i / 2 * steps + step) * kStripBytes + i % 2 * kTileBytes;
      TransposeWords(pairs + i * kTileBytes, kRowBytes,
                     [&](int word, __m512i line) { _mm512_store_si512(tile + word * kRowBytes, line); });
    }
  }
}

void tile_row_product(const TileRowProduct& x, TileUnit unit) {
  if (unit != TileUnit::amx) return ProductEmulated(x);
  if (x.parts == 1 && x.steps == 1) return ProductOfShort<1>(x);
  if (x.parts == 1 && x.steps == 2) return ProductOfShort<2>(x);
  WithParts(x.parts, [&](auto parts) { ProductOfAny<parts()>(x); });
}

void pack_tile_weights(const float* from, int keys, int queries, const TileWeights& to, TileUnit unit) {
  WithParts(to.parts, [&](auto parts) {
    unit == TileUnit::amx ? PackWeights<true, parts()>(from, keys, queries, to)
                          : PackWeights<false, parts()>(from, keys, queries, to);
  });
}

void tile_gradient_rows(const TileGradientRows& x, TileUnit unit) {
  WithParts(x.p.parts, [&](auto parts) {
    if (unit == TileUnit::amx)
      return x.lo != nullptr ? GradientRows<true, true, parts()>(x) : GradientRows<true, false, parts()>(x);
    x.lo != nullptr ? GradientRows<false, true, parts()>(x) : GradientRows<false, false, parts()>(x);
  });
}

void tile_sum(const TileSum& x, TileUnit unit) {
  if (unit != TileUnit::amx) return SumEmulated(x);
  WithParts(x.parts, [&](auto parts) { SumOnTiles<parts()>(x); });
}

}  // namespace multihead::kernels
HWY_POP_ATTRIBUTES
#endif
