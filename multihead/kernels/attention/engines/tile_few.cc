// Attention of up to 8 queries in the order of the tiles' sums, without tiles, which are slower below 10 rows.
//
// 16 keys get into lanes, of which 8 numbers at a time; each 32 numbers are one chain of even and one of odd
// numbers, as in the instruction. The values of the chunk are fetched meanwhile, and the next chunk's keys
// while those are added, to L2: each is 32 KB, which would evict from L1 what is being read. .89, .82 and .63 of the rate
// at which memory is read for 1, 4 and 8 rows (.78, .74, .55 with L1; Xeon with AMX, 2026-11).
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "multihead/kernels/attention/engines/tile_rows-inl.h"
#include "multihead/kernels/attention/engines/tile_vectors-inl.h"

#if MH_TILES
MH_PUSH_TILES
namespace multihead::kernels {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace)

HWY_INLINE __m512 Lower(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
HWY_INLINE __m512 Upper(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

// s[row][16 keys] of rows `stride` bytes apart. `ahead`: rows to fetch, as many lines of each.
template <int kRows>
HWY_NOINLINE void ScoreStrip(const char* keys, int64_t stride, const float* q, int64_t steps,
                             const char* ahead, int64_t ahead_stride, float* s) {
  __m512 sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
    __m512 even[kRows], odd[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const char* at = keys + step * kRowBytes + part * 16;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        _mm_prefetch(ahead + (4 * part + i) * ahead_stride + step * kRowBytes, _MM_HINT_T1);
      const __m512i x0 = LoadQuarters(at, stride), x1 = LoadQuarters(at + stride, stride);
      const __m512i x2 = LoadQuarters(at + 2 * stride, stride), x3 = LoadQuarters(at + 3 * stride, stride);
      const __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpackhi_epi32(x0, x1);
      const __m512i d = _mm512_unpacklo_epi32(x2, x3), e = _mm512_unpackhi_epi32(x2, x3);
      const __m512i words[4] = {_mm512_unpacklo_epi64(a, d), _mm512_unpackhi_epi64(a, d),
                                _mm512_unpacklo_epi64(b, e), _mm512_unpackhi_epi64(b, e)};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j, q += 2 * kRows) {
        const __m512 lower = Lower(words[j]), upper = Upper(words[j]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          even[r] = _mm512_fmadd_ps(lower, _mm512_set1_ps(q[r]), even[r]);
          odd[r] = _mm512_fmadd_ps(upper, _mm512_set1_ps(q[kRows + r]), odd[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(even[r], odd[r]));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(s + r * kFewKeys, sum[r]);
}

template <int kRows>
void Scores(const TileFew& x, float* s) {
  const int64_t steps = x.key.dim / kAmxStep;
  alignas(64) char copy[16 * 512];
  for (int k = 0; k < x.pairs * kTileStep; k += 16) {
    const char *keys = x.key.rows + k * x.key.stride, *ahead = x.value.rows + k * x.value.stride;
    int64_t stride = x.key.stride;
    if (k < x.key.first || k + 16 > x.key.end) {  // what is not there is not read
      stride = x.key.dim * 2;
      std::memset(copy, 0, static_cast<size_t>(16 * stride));
      for (int i = std::max(x.key.first - k, 0); i < std::min(x.key.end - k, 16); ++i) {
        std::memcpy(copy + i * stride, keys + i * x.key.stride, static_cast<size_t>(stride));
      }
      keys = copy;
    }
    ScoreStrip<kRows>(keys, stride, x.query, steps, ahead, x.value.stride, s + k);
  }
}

// out[row][16 kVecs columns] += Σ over the keys of a pair of strips.
template <int kRows, int kVecs>
HWY_NOINLINE void AddPair(const char* values, int64_t stride, int first, int end, const float* p,
                          const char* ahead, int64_t ahead_stride, float* out, int64_t out_stride) {
  __m512 sum[2][kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[0][r][v] = sum[1][r][v] = _mm512_setzero_ps();
  }
  const auto add = [&](int k, auto parity) __attribute__((always_inline)) {
    const char* row = values + k * stride;
    if constexpr (kVecs == 1) {
      _mm_prefetch(ahead + k * ahead_stride, _MM_HINT_T1);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; v += 2) _mm_prefetch(ahead + k * ahead_stride + 32 * v, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * v));
      const __m512 x = Lower(_mm512_cvtepu16_epi32(half));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        __m512& to = sum[parity()][r][v];
        to = _mm512_fmadd_ps(x, _mm512_set1_ps(p[r * kFewKeys + k]), to);
      }
    }
  };
  constexpr std::integral_constant<int, 0> kEven;
  constexpr std::integral_constant<int, 1> kOdd;
  int k = first;
  if (k % 2 == 1 && k < end) add(k++, kOdd);
  for (; k + 2 <= end; k += 2) {
    add(k, kEven);
    add(k + 1, kOdd);
  }
  if (k < end) add(k, kEven);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* at = out + r * out_stride + 16 * v;
      _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), _mm512_add_ps(sum[0][r][v], sum[1][r][v])));
    }
  }
}

template <int kRows>
void Values(const TileFew& x, const float* p, float* out) {
  constexpr int kWide = kRows == 8 ? 1 : 8 / kRows;
  const TileSource& v = x.value;
  for (int b = 0; b < x.pairs; ++b) {
    const int k = b * kTileStep, first = std::max(v.first - k, 0), end = std::min(v.end - k, kTileStep);
    const char *values = v.rows + k * v.stride, *ahead = x.next + k * x.key.stride;
    int64_t c = 0;
    for (; c + 16 * kWide <= v.dim; c += 16 * kWide)
      AddPair<kRows, kWide>(values + 2 * c, v.stride, first, end, p + k, ahead + 2 * c, x.key.stride, out + c,
                            v.dim);
    for (; c < v.dim; c += 32)
      AddPair<kRows, std::min(kWide, 2)>(values + 2 * c, v.stride, first, end, p + k, ahead + 2 * c,
                                         x.key.stride, out + c, v.dim);
  }
}

// p = what the product of tiles takes: probabilities rounded to bf16, as f32.
template <bool kAmx>
void Softmax(const TileFew& x, const float* factor, const float* shift, const uint32_t* seen, const float* s,
             float* p, float* lanes) {
  for (int row = 0; row < x.rows; ++row) {
    const __m512 scale = _mm512_set1_ps(factor[row]), m = _mm512_set1_ps(shift[row]);
    __m512 sum = _mm512_load_ps(lanes + 16 * row);
    for (int b = 0; b < x.pairs; ++b) {
      const int64_t at = row * kFewKeys + b * kTileStep;
      const uint32_t bits = seen[b * kRowTile + row];
      const __m512 low = Power<true>(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), scale, m), bits);
      const __m512 high = Power<true>(_mm512_fmsub_ps(_mm512_loadu_ps(s + at + 16), scale, m), bits >> 16);
      const __m512i rounded = Rounded<kAmx>(high, low);
      _mm512_storeu_ps(p + at, Lower(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(rounded))));
      _mm512_storeu_ps(p + at + 16, Lower(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(rounded, 1))));
      sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
    }
    _mm512_store_ps(lanes + 16 * row, sum);
  }
}

}  // namespace

int few_rows_padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }

void few_scores(const TileFew& x, float* s) {
  const int rows = few_rows_padded(x.rows);
  if (rows == 1) return Scores<1>(x, s);
  if (rows == 2) return Scores<2>(x, s);
  rows == 4 ? Scores<4>(x, s) : Scores<8>(x, s);
}

void few_softmax(const TileFew& x, const float* factor, const float* shift, const uint32_t* seen,
                 const float* s, float* p, float* lanes, TileUnit unit) {
  unit == TileUnit::amx ? Softmax<true>(x, factor, shift, seen, s, p, lanes)
                        : Softmax<false>(x, factor, shift, seen, s, p, lanes);
}

void few_maxima(const TileFew& x, float factor, const uint32_t* seen, const float* s, float* max) {
  const __m512 scale = _mm512_set1_ps(factor), none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int row = 0; row < x.rows; ++row, s += kFewKeys) {
    __m512 low = none, high = none;
    for (int b = 0; b < x.pairs; ++b) {
      const uint32_t bits = seen[b * kRowTile + row];
      const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(s + b * kTileStep), scale);
      const __m512 z = _mm512_mul_ps(_mm512_loadu_ps(s + b * kTileStep + 16), scale);
      low = _mm512_mask_max_ps(low, static_cast<__mmask16>(bits), low, y);
      high = _mm512_mask_max_ps(high, static_cast<__mmask16>(bits >> 16), high, z);
    }
    max[row] = _mm512_reduce_max_ps(_mm512_max_ps(low, high));
  }
}

void few_values(const TileFew& x, const float* p, bool add, float* out) {
  const int rows = few_rows_padded(x.rows);
  if (!add) std::fill_n(out, rows * x.value.dim, 0.0f);
  if (rows == 1) return Values<1>(x, p, out);
  if (rows == 2) return Values<2>(x, p, out);
  rows == 4 ? Values<4>(x, p, out) : Values<8>(x, p, out);
}

}  // namespace multihead::kernels
HWY_POP_ATTRIBUTES
#endif
