// The inner loops of attention on tiles.
//
// Cycles while tiles are in use (Xeon with AMX, 2026-11): a product of tiles 16.8, also in a chain; a load of
// a tile 9 from L1 and 22 from L2; a store 17. FMA, maximum and scaling of a vector 1, addition and logic .5.
#include "multihead/kernels/attention/engines/tile_rows-inl.h"

#include <algorithm>
#include <limits>

#include "multihead/kernels/attention/engines/tile_vectors-inl.h"

#if MH_TILES
MH_PUSH_TILES
namespace multihead::kernels {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace)

// Registers 0 and 1: sums in turn, each stored while the other is made; 2-5: queries; 6, 7: keys.
template <int kSteps>
HWY_NOINLINE void ScoresOfShort(const TileChunk& c, const TileScores& x) {
  constexpr int64_t kStride = kSteps * kRowBytes;
  const char *q = x.query, *p = q + 16 * kStride;
  auto* const s = reinterpret_cast<char*>(c.s);
  MH_TILE_BARRIER;
  _tile_loadd(2, q, kStride);
  _tile_loadd(4, p, kStride);
  if constexpr (kSteps == 2) {
    _tile_loadd(3, q + kRowBytes, kStride);
    _tile_loadd(5, p + kRowBytes, kStride);
  }
  char* before = s + kStripBytes;  // written again by its own sums
  for (int b = 0; b < 2 * c.pairs; ++b) {
    const char* k = x.keys + (b / 2 * kSteps * 2 + b % 2) * kTileBytes;
    char* to = s + b / 2 * kPairBytes + b % 2 * kTileBytes;
    _tile_loadd(6, k, kRowBytes);
    _tile_zero(0);
    _tile_dpbf16ps(0, 2, 6);
    if constexpr (kSteps == 2) {
      _tile_loadd(7, k + kStripBytes, kRowBytes);
      _tile_dpbf16ps(0, 3, 7);
    }
    _tile_stored(1, before, kRowBytes);
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 6);
    if constexpr (kSteps == 2) _tile_dpbf16ps(1, 5, 7);
    _tile_stored(0, to, kRowBytes);
    before = to + kStripBytes;
  }
  _tile_stored(1, before, kRowBytes);
  MH_TILE_BARRIER;
}

// The queries and the first pair of keys.
HWY_INLINE StepOperand QueriesOf(const TileScores& x, int64_t steps) {
  const int64_t row = steps * kRowBytes;
  return {x.query, row, 16 * row, 32 * row, 64 * row};
}
HWY_INLINE StepOperand KeysOf(const TileScores& x, int64_t steps) {
  return {x.keys, kRowBytes, kTileBytes, steps * kStripBytes, 2 * steps * kStripBytes};
}

// Registers 0-3: sums. kSteps: 0 if it is not known.
template <int kStrips, int kSteps, int kParts>
HWY_NOINLINE void ScoresOfAny(const TileChunk& c, const TileScores& x) {
  const int64_t steps = kSteps != 0 ? kSteps : x.steps;
  StepOperand q = QueriesOf(x, steps), k = KeysOf(x, steps);
  auto* to = reinterpret_cast<char*>(c.s);
  MH_TILE_BARRIER;
  for (int b = 0; b < c.pairs; ++b, to += kPairBytes) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kStrips == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    q.at = x.query;
#pragma GCC unroll 4
    for (int64_t step = 0; step < steps; ++step, q.at += kRowBytes, k.at += kStripBytes)
      AddStep<kParts, kStrips>(q, k);
    k.at += (kParts - 1) * steps * kStripBytes;
    _tile_stored(0, to, kRowBytes);
    if constexpr (kStrips == 2) _tile_stored(2, to + kStripBytes, kRowBytes);
    _tile_stored(1, to + kTileBytes, kRowBytes);
    if constexpr (kStrips == 2) _tile_stored(3, to + kStripBytes + kTileBytes, kRowBytes);
  }
  MH_TILE_BARRIER;
}

void ScoresEmulated(const TileChunk& c, const TileScores& x) {
  std::fill_n(c.s, c.pairs * kPairFloats, 0.0f);
  StepOperand q = QueriesOf(x, x.steps), k = KeysOf(x, x.steps);
  for (int b = 0; b < c.pairs; ++b) {
    q.at = x.query, k.at = x.keys + b * x.parts * x.steps * kStripBytes;
    for (int64_t i = 0; i < x.steps; ++i, q.at += kRowBytes, k.at += kStripBytes)
      EmulateStep(x.parts, c.strips, q, k, c.s + b * kPairFloats, kAmxLines, 512, 256);
  }
}

// The first pair of probabilities and of the values of 32 columns.
HWY_INLINE StepOperand ProbabilitiesOf(const TileChunk& c) {
  return {reinterpret_cast<const char*>(c.s), kRowBytes, kStripBytes, kTileBytes, 4 * kChunkFloats};
}
HWY_INLINE StepOperand ValuesOf(const TileValues& x, int64_t columns) {
  const int64_t part = x.steps * kStripBytes;
  return {x.values + columns * kStripBytes, kRowBytes, kTileBytes, part, 2 * part};
}

template <int kStrips, int kParts>
HWY_NOINLINE void ValuesOnTiles(const TileChunk& c, const TileValues& x) {
  const int64_t row = x.out_stride * 4;
  MH_TILE_BARRIER;
  for (int64_t b = 0; b < x.steps; ++b) {
    float *o = x.out + b * 32, *u = o + 16 * x.out_stride;
    if (x.add) {
      _tile_loadd(0, o, row);
      _tile_loadd(1, o + 16, row);
      if constexpr (kStrips == 2) {
        _tile_loadd(2, u, row);
        _tile_loadd(3, u + 16, row);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kStrips == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    StepOperand p = ProbabilitiesOf(c), v = ValuesOf(x, b);
#pragma GCC unroll 2
    for (int i = 0; i < c.pairs; ++i, p.at += kPairBytes, v.at += kParts * x.steps * kStripBytes)
      AddStep<kParts, kStrips>(p, v);
    _tile_stored(0, o, row);
    _tile_stored(1, o + 16, row);
    if constexpr (kStrips == 2) {
      _tile_stored(2, u, row);
      _tile_stored(3, u + 16, row);
    }
  }
  MH_TILE_BARRIER;
}

void ValuesEmulated(const TileChunk& c, const TileValues& x) {
  for (int r = 0; r < 16 * c.strips && !x.add; ++r) std::fill_n(x.out + r * x.out_stride, x.steps * 32, 0.0f);
  for (int64_t b = 0; b < x.steps; ++b) {
    StepOperand p = ProbabilitiesOf(c), v = ValuesOf(x, b);
    for (int i = 0; i < c.pairs; ++i, p.at += kPairBytes, v.at += x.parts * x.steps * kStripBytes)
      EmulateStep(x.parts, c.strips, p, v, x.out + b * 32, x.out_stride, 16 * x.out_stride, 16);
  }
}

template <bool kNatural>
HWY_INLINE __m512 Exponent(const char* at, __m512 factor, __m512 shift) {
  const __m512 s = _mm512_load_ps(at);
  return kNatural ? _mm512_mul_ps(_mm512_sub_ps(s, shift), factor) : _mm512_fmsub_ps(s, factor, shift);
}

// The unit of tiles falls asleep after some 1,500 cycles without a product, and the next products take twice as
// long: one that nothing reads keeps it awake.
template <bool kAmx, bool kNatural, bool kMasked, int kParts>
HWY_NOINLINE void Softmax(const TileChunk& c, const TileSoftmax& x) {
  for (int row = 0; row < 16 * c.strips; row += 2) {
    char* at = reinterpret_cast<char*>(c.s) + row / 16 * kStripBytes + row % 16 * kRowBytes;
    const __m512 factor0 = _mm512_set1_ps(x.factor[row]), factor1 = _mm512_set1_ps(x.factor[row + 1]);
    const __m512 m0 = _mm512_set1_ps(x.shift[row]), m1 = _mm512_set1_ps(x.shift[row + 1]);
    __m512 sum0 = _mm512_load_ps(x.lanes + 16 * row), sum1 = _mm512_load_ps(x.lanes + 16 * row + 16);
    const uint32_t* seen = x.seen != nullptr ? x.seen + row : nullptr;
    const uint32_t* kept = x.kept != nullptr ? x.kept + row : nullptr;
    if (kAmx && row == 16) _tile_dpbf16ps(0, 6, 7);
    for (int b = 0; b < c.pairs; ++b, at += kPairBytes) {
      uint32_t seen0 = ~0U, seen1 = ~0U;
      if constexpr (kMasked) {
        if (seen != nullptr) seen0 = seen[0], seen1 = seen[1], seen += kRowTile;
      }
      const auto power = [&](const char* s, __m512 by, __m512 m, uint32_t bits)
          __attribute__((always_inline)) {
        return Power<kMasked, (kParts > 1)>(Exponent<kNatural>(s, by, m), bits);
      };
      const __m512 a = power(at, factor0, m0, seen0), d = power(at + kTileBytes, factor0, m0, seen0 >> 16);
      const __m512 e = power(at + kRowBytes, factor1, m1, seen1),
                   f = power(at + kTileBytes + kRowBytes, factor1, m1, seen1 >> 16);
      __m512i p0[kParts], p1[kParts];
      PartsOf<kAmx>(d, a, p0), PartsOf<kAmx>(f, e, p1);
#pragma GCC unroll 3
      for (int part = 0; part < kParts; ++part) {
        if constexpr (kMasked) {
          if (kept != nullptr) {
            p0[part] = _mm512_maskz_mov_epi16(kept[0], p0[part]),
            p1[part] = _mm512_maskz_mov_epi16(kept[1], p1[part]);
          }
        }
        char* to = at + (part == 2 ? 4 * kChunkFloats : part * kTileBytes);
        _mm512_store_si512(to, p0[part]), _mm512_store_si512(to + kRowBytes, p1[part]);
      }
      if (kMasked && kept != nullptr) kept += kRowTile;
      sum0 = _mm512_add_ps(sum0, _mm512_add_ps(a, d)), sum1 = _mm512_add_ps(sum1, _mm512_add_ps(e, f));
    }
    _mm512_store_ps(x.lanes + 16 * row, sum0), _mm512_store_ps(x.lanes + 16 * row + 16, sum1);
  }
}

template <bool kAmx>
void SoftmaxOf(const TileChunk& c, const TileSoftmax& x) {
  const bool masked = x.seen != nullptr || x.kept != nullptr;
  WithParts(x.parts, [&](auto parts) {
    if (x.natural)
      return masked ? Softmax<kAmx, true, true, parts()>(c, x) : Softmax<kAmx, true, false, parts()>(c, x);
    masked ? Softmax<kAmx, false, true, parts()>(c, x) : Softmax<kAmx, false, false, parts()>(c, x);
  });
}

struct Sum {
  static HWY_INLINE __m512 Of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
struct Largest {
  static HWY_INLINE __m512 Of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};

// Lane i: the sum or the largest of the lanes of x[i].
template <class Join>
HWY_INLINE __m512 Across(const __m512* x) {
  __m512 a[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    a[i] = Join::Of(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xEE));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    a[i] = Join::Of(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    a[i] = Join::Of(_mm512_shuffle_ps(a[i], a[i + 2], 0x44), _mm512_shuffle_ps(a[i], a[i + 2], 0xEE));
  const __m512 y = Join::Of(_mm512_shuffle_ps(a[0], a[1], 0x88), _mm512_shuffle_ps(a[0], a[1], 0xDD));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), y);
}

// `kRaw`: the factor is positive, so that it may come last.
template <bool kMasked, bool kRaw>
HWY_NOINLINE void Maxima(const TileChunk& c, float factor, const uint32_t* seen, float* max) {
  const __m512 scale = _mm512_set1_ps(factor), none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const auto load = [&](const char* at) __attribute__((always_inline)) {
    return kRaw ? _mm512_load_ps(at) : _mm512_mul_ps(_mm512_load_ps(at), scale);
  };
  for (int g = 0; g < c.strips; ++g) {
    __m512 top[16];
    for (int r = 0; r < 16; ++r) {
      const char* at = reinterpret_cast<const char*>(c.s) + g * kStripBytes + r * kRowBytes;
      const uint32_t* word = kMasked ? seen + 16 * g + r : nullptr;
      __m512 low = none, high = none;
      for (int b = 0; b < c.pairs; ++b, at += kPairBytes) {
        if constexpr (kMasked) {
          const uint32_t bits = word[b * kRowTile];
          low = _mm512_mask_max_ps(low, static_cast<__mmask16>(bits), low, load(at));
          high = _mm512_mask_max_ps(high, static_cast<__mmask16>(bits >> 16), high, load(at + kTileBytes));
        } else {
          low = _mm512_max_ps(low, load(at)), high = _mm512_max_ps(high, load(at + kTileBytes));
        }
      }
      top[r] = _mm512_max_ps(low, high);
    }
    const __m512 all = Across<Largest>(top);
    _mm512_store_ps(max + 16 * g, kRaw ? _mm512_mul_ps(all, scale) : all);
  }
}

}  // namespace

FlushedSubnormals::FlushedSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
FlushedSubnormals::~FlushedSubnormals() { _mm_setcsr(saved_); }

void tile_scores(const TileChunk& c, const TileScores& x, TileUnit unit) {
  if (unit != TileUnit::amx) return ScoresEmulated(c, x);
  if (c.strips == 2 && x.parts == 1) {
    if (x.steps == 1) return ScoresOfShort<1>(c, x);
    if (x.steps == 2) return ScoresOfShort<2>(c, x);
    if (x.steps == 4) return ScoresOfAny<2, 4, 1>(c, x);
  }
  WithParts(x.parts, [&](auto parts) {
    c.strips == 1 ? ScoresOfAny<1, 0, parts()>(c, x) : ScoresOfAny<2, 0, parts()>(c, x);
  });
}

void tile_values(const TileChunk& c, const TileValues& x, TileUnit unit) {
  if (unit != TileUnit::amx) return ValuesEmulated(c, x);
  WithParts(x.parts, [&](auto parts) {
    c.strips == 1 ? ValuesOnTiles<1, parts()>(c, x) : ValuesOnTiles<2, parts()>(c, x);
  });
}

void tile_softmax(const TileChunk& c, const TileSoftmax& x, TileUnit unit) {
  unit == TileUnit::amx ? SoftmaxOf<true>(c, x) : SoftmaxOf<false>(c, x);
}

void tile_scale_row(const TileChunk& c, int row, float factor) {
  char* at = reinterpret_cast<char*>(c.s) + row / 16 * kStripBytes + row % 16 * kRowBytes;
  for (int b = 0; b < 2 * c.pairs; ++b) {
    float* s = reinterpret_cast<float*>(at + b / 2 * kPairBytes + b % 2 * kTileBytes);
    _mm512_store_ps(s, _mm512_mul_ps(_mm512_load_ps(s), _mm512_set1_ps(factor)));
  }
}

void tile_maxima(const TileChunk& c, float factor, const uint32_t* seen, float* max) {
  if (!(factor > 0)) {
    return seen != nullptr ? Maxima<true, false>(c, factor, seen, max)
                           : Maxima<false, false>(c, factor, seen, max);
  }
  seen != nullptr ? Maxima<true, true>(c, factor, seen, max) : Maxima<false, true>(c, factor, seen, max);
}

void tile_sums(const float* lanes, int strips, float* sums) {
  for (int g = 0; g < strips; ++g) {
    __m512 x[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) x[r] = _mm512_load_ps(lanes + 256 * g + 16 * r);
    _mm512_store_ps(sums + 16 * g, Across<Sum>(x));
  }
}

}  // namespace multihead::kernels
HWY_POP_ATTRIBUTES
#endif
