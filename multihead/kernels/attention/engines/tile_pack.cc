// The work on rows before and after the products of attention on tiles: packing, masks, transposes, output.
#include "multihead/kernels/attention/engines/tile_gradients-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"
#include "multihead/kernels/attention/engines/tile_vectors-inl.h"

#if MH_TILES

MH_PUSH_TILES
namespace multihead::kernels {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace)

// Rows that are read where they lie.
HWY_INLINE bool IsWhole(const TileSource& x) {
  return x.bf16 && x.first == 0 && x.end == kTileStep && x.dim % kAmxStep == 0;
}

// Two strips of rows, transposed.
HWY_INLINE void TransposeStrips(const char* from, int64_t stride, char* to) {
  for (int half = 0; half < 2; ++half, to += kTileBytes) {
    TransposeWords(from + half * 16 * stride, stride,
                   [&](int word, __m512i line) { _mm512_store_si512(to + word * kRowBytes, line); });
  }
}

template <bool kAmx, int kParts>
bool PackKeys(const TileSource& x, char* to) {
  alignas(64) char copy[kParts][kTileStep * kRowBytes];
  const bool whole = IsWhole(x);
  const int64_t steps = amx_steps(x.dim);
  __m512i top = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; ++step, to += kStripBytes) {
    if (whole) {
      TransposeStrips(x.rows + 64 * step, x.stride, to);
      continue;
    }
    for (int r = 0; r < kTileStep; ++r) {
      __m512i row[kParts];
      LoadStep<kAmx, kParts>(x, r, step, row);
#pragma GCC unroll 3
      for (int part = 0; part < kParts; ++part) {
        _mm512_store_si512(copy[part] + r * kRowBytes, row[part]);
        top = _mm512_max_epi16(top, WithoutSign(row[part]));
      }
    }
    for (int part = 0; part < kParts; ++part)
      TransposeStrips(copy[part], kRowBytes, to + part * steps * kStripBytes);
  }
  return kParts > 1 && InfOrNan(top) != 0;
}

// True if a number is not finite.
template <bool kAmx, int kParts, bool kWhole, bool kClean>
HWY_NOINLINE bool PackValues(const TileSource& x, char* to) {
  const __m512i low = _mm512_load_si512(kPairOrder.low), high = _mm512_load_si512(kPairOrder.high);
  const int64_t next = amx_steps(x.dim) * kStripBytes;
  __m512i top = _mm512_setzero_si512();
  for (int64_t step = 0; step < amx_steps(x.dim); ++step, to += kStripBytes) {
    const char* at = x.rows + 64 * step;
    for (int r = 0; r < kTileStep; r += 2, at += 2 * x.stride) {
      __m512i a[kParts], b[kParts];
      if constexpr (kWhole) {
        a[0] = _mm512_loadu_si512(at), b[0] = _mm512_loadu_si512(at + x.stride);
      } else {
        LoadStep<kAmx, kParts>(x, r, step, a), LoadStep<kAmx, kParts>(x, r + 1, step, b);
      }
      char* pair = to + r / 2 * kRowBytes;
#pragma GCC unroll 3
      for (int i = 0; i < kParts; ++i, pair += next) {
        if constexpr (kClean) {
          a[i] = _mm512_maskz_mov_epi16(~InfOrNan(a[i]), a[i]),
          b[i] = _mm512_maskz_mov_epi16(~InfOrNan(b[i]), b[i]);
        } else {
          top = _mm512_max_epi16(top, _mm512_max_epi16(WithoutSign(a[i]), WithoutSign(b[i])));
        }
        _mm512_store_si512(pair, _mm512_permutex2var_epi16(a[i], low, b[i]));
        _mm512_store_si512(pair + kTileBytes, _mm512_permutex2var_epi16(a[i], high, b[i]));
      }
    }
  }
  return kClean || InfOrNan(top) != 0;
}

template <bool kAmx, int kParts, bool kClean>
bool PackValuesOf(const TileSource& x, char* to) {
  if constexpr (kParts == 1 && !kClean) {
    if (IsWhole(x)) return PackValues<kAmx, kParts, true, false>(x, to);
  }
  return PackValues<kAmx, kParts, false, kClean>(x, to);
}

template <bool kAmx, int kParts>
bool PackQueries(const TileSource& x, char* to, int64_t part) {
  const int64_t steps = amx_steps(x.dim);
  __m512i top = _mm512_setzero_si512();
  for (int r = x.first; r < x.end; ++r) {
    for (int64_t s = 0; s < steps; ++s) {
      __m512i row[kParts];
      LoadStep<kAmx, kParts>(x, r, s, row);
#pragma GCC unroll 3
      for (int i = 0; i < kParts; ++i) {
        _mm512_storeu_si512(to + (r * steps + s) * kRowBytes + i * part, row[i]);
        top = _mm512_max_epi16(top, WithoutSign(row[i]));
      }
    }
  }
  return kParts > 1 && InfOrNan(top) != 0;
}

template <bool kAmx>
bool WriteRows(const TileOutput& x) {
  __m512 check = _mm512_setzero_ps();
  for (int r = 0; r < x.rows; ++r) {
    const float* from = x.from + r * x.columns;
    auto* to = static_cast<char*>(x.to[r]);
    const __m512 factor = _mm512_set1_ps(x.factors[r]);
    for (int64_t c = 0; c < x.dim; c += 32) {
      const __m512 a = _mm512_mul_ps(_mm512_load_ps(from + c), factor);
      const __m512 b = _mm512_mul_ps(_mm512_load_ps(from + c + 16), factor);
      check = _mm512_add_ps(check, _mm512_add_ps(_mm512_sub_ps(a, a), _mm512_sub_ps(b, b)));
      const __m512i both = Rounded<kAmx>(b, a);
      if (x.dim - c >= 32) {
        _mm512_storeu_si512(to + 2 * c, both);
      } else {
        _mm512_mask_storeu_epi16(to + 2 * c, FirstBits(x.dim - c), both);
      }
    }
  }
  return _mm512_cmp_ps_mask(check, check, _CMP_UNORD_Q) == 0;
}

}  // namespace

bool pack_tile_keys(const TileSource& from, char* to, TileUnit unit) {
  return WithParts(from.parts, [&](auto parts) {
    return unit == TileUnit::amx ? PackKeys<true, parts()>(from, to) : PackKeys<false, parts()>(from, to);
  });
}

namespace {

template <bool kClean>
bool PackColumns(const TileSource& from, char* to, TileUnit unit) {
  return WithParts(from.parts, [&](auto parts) {
    return unit == TileUnit::amx ? PackValuesOf<true, parts(), kClean>(from, to)
                                 : PackValuesOf<false, parts(), kClean>(from, to);
  });
}

}  // namespace

void pack_tile_columns(const TileSource& from, char* to, TileUnit unit) {
  PackColumns<false>(from, to, unit);
}

bool pack_tile_values(const TileSource& from, char* to, TileUnit unit) {
  return PackColumns<false>(from, to, unit) && PackColumns<true>(from, to, unit);
}

bool pack_tile_queries(const TileSource& from, char* to, int64_t part, TileUnit unit) {
  return WithParts(from.parts, [&](auto parts) {
    return unit == TileUnit::amx ? PackQueries<true, parts()>(from, to, part)
                                 : PackQueries<false, parts()>(from, to, part);
  });
}

void tile_intervals(const int32_t* lo, const int32_t* hi, int key, const TileChunk& c, uint32_t* words) {
  const __m512i ones = _mm512_set1_epi32(1), last = _mm512_set1_epi32(32), zero = _mm512_setzero_si512();
  for (int b = 0; b < c.pairs; ++b) {
    const __m512i first = _mm512_set1_epi32(key + b * kTileStep);
    const auto below = [&](const int32_t* end) {
      const __m512i from_first = _mm512_sub_epi32(_mm512_load_si512(end), first);
      const __m512i count = _mm512_min_epi32(_mm512_max_epi32(from_first, zero), last);
      return _mm512_sub_epi32(_mm512_sllv_epi32(ones, count), ones);
    };
    for (int g = 0; g < c.strips; ++g) {
      const __m512i seen = _mm512_andnot_si512(below(lo + 16 * g), below(hi + 16 * g));
      _mm512_store_si512(words + b * kRowTile + 16 * g, seen);
    }
  }
}

void transpose_bits(const uint32_t* rows, uint32_t* words) {
  const __m512i low = _mm512_loadu_si512(rows), high = _mm512_loadu_si512(rows + 16);
  for (int r = 0; r < kRowTile; ++r) {
    const __m512i bit = _mm512_set1_epi32(static_cast<int>(1U << r));
    words[r] = uint32_t{_mm512_test_epi32_mask(low, bit)} | uint32_t{_mm512_test_epi32_mask(high, bit)} << 16;
  }
}

void tile_flags(const uint8_t* flags, int64_t stride, int begin, int end, const TileChunk& c,
                uint32_t* words) {
  alignas(64) uint32_t rows[kTileChunk] = {}, kept[kRowTile];
  for (int k = begin; k < end; ++k, flags += stride) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags));
    rows[k] = _mm256_test_epi8_mask(row, row);
  }
  for (int b = 0; b < c.pairs; ++b) {
    transpose_bits(rows + b * kTileStep, kept);
    for (int r = 0; r < kRowTile; ++r) words[b * kRowTile + r] &= kept[r];
  }
}

void tile_scores_to_lanes(const TileChunk& c, float factor, float* to, int64_t stride) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (int i = 0; i < 2 * c.pairs; ++i) {
    for (int g = 0; g < c.strips; ++g) {
      float* at = to + 16 * i * stride + 16 * g;
      const float* tile = c.s + i / 2 * kPairFloats + g * 512 + i % 2 * 256;
      TransposeWords(reinterpret_cast<const char*>(tile), kRowBytes, [&](int key, __m512i x) {
        _mm512_storeu_ps(at + key * stride, _mm512_mul_ps(_mm512_castsi512_ps(x), scale));
      });
    }
  }
}

void tile_scores_from_lanes(const TileChunk& c, const float* from, int64_t stride) {
  for (int i = 0; i < 2 * c.pairs; ++i) {
    for (int g = 0; g < c.strips; ++g) {
      const float* at = from + 16 * i * stride + 16 * g;
      float* tile = c.s + i / 2 * kPairFloats + g * 512 + i % 2 * 256;
      TransposeWords(reinterpret_cast<const char*>(at), stride * 4,
                     [&](int row, __m512i x) { _mm512_store_ps(tile + 16 * row, _mm512_castsi512_ps(x)); });
    }
  }
}

bool write_tile_rows(const TileOutput& x, TileUnit unit) {
  return unit == TileUnit::amx ? WriteRows<true>(x) : WriteRows<false>(x);
}

}  // namespace multihead::kernels
HWY_POP_ATTRIBUTES
#endif
