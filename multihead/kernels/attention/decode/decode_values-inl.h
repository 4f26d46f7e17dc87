// Sums of probabilities and of values over the keys of one block, for up to 8 rows.
//
// 4 rows x 4 vectors of sums, twice over 16 rows in L1, reach .95-.97 of the read rate, 2 rows x 8 vectors
// .74-.86 (Zen 5, 2026-11). bf16 comes as pairs of columns, which a shift and a mask widen.

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_VALUES_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_VALUES_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_VALUES_INL_H_
#endif

#include <type_traits>

#include "multihead/kernels/attention/decode/decode_memory-inl.h"
#include "multihead/kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
static_assert(kRun == kSumChain, "a run is one chain of a tile's sums");

// Keys from `key` on that lie in the same run.
HWY_INLINE int RunRest(int key) { return kRun - key % kRun; }

// sum[row] += the chain p[row][0 … keys): four chains at a time. Rows beyond the tile's are not read back.
HWY_INLINE void SumRun(const float* p, int keys, int rows, float* sum) {
  for (int row = 0; row < rows; row += 4, p += 4 * kBlock) {
    float a = 0, b = 0, c = 0, e = 0;
    for (int k = 0; k < keys; ++k) {
      a += p[k], b += p[kBlock + k], c += p[2 * kBlock + k], e += p[3 * kBlock + k];
    }
    sum[row] += a, sum[row + 1] += b, sum[row + 2] += c, sum[row + 3] += e;
  }
}

// Calls f(row, count, prefetches) for 4, 2 or 1 rows at a time; of eight rows the second half prefetches
// nothing.
template <class Body>
HWY_INLINE void EachFewRows(int rows, const Body& f) {
  int row = 0;
  for (; rows - row >= 4; row += 4) {
    if (row == 0) {
      f(row, std::integral_constant<int, 4>(), std::true_type());
    } else {
      f(row, std::integral_constant<int, 4>(), std::false_type());
    }
  }
  if (rows - row >= 2) f(row, std::integral_constant<int, 2>(), std::true_type()), row += 2;
  if (rows - row >= 1) f(row, std::integral_constant<int, 1>(), std::true_type());
}

// to += from, from <- 0.
HWY_INLINE void EndChains(float* from, int64_t count, float* to) {
  const F d;
  for (int64_t i = 0; i < count; i += kN) {
    hn::Store(hn::Add(hn::Load(d, to + i), hn::Load(d, from + i)), d, to + i);
    hn::Store(hn::Zero(d), d, from + i);
  }
}

// q[column][row] from the tile's lanes.
HWY_INLINE void GatherQuery(const float* qt, int64_t dim, int rows, float* q) {
  for (int64_t c = 0; c < dim; ++c) std::copy_n(qt + c * kTileRows, rows, q + c * rows);
}

// Rows that a pass computes; those beyond the tile's are computed from what lies there and not read back.
HWY_INLINE int PaddedRows(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }

// s[row][key] <- scores with what the row does not see at -inf; their maximum.
HWY_INLINE float MaskFew(const RowTile& t, const BlockRange& r, int row, float* s) {
  const F d;
  const I di;
  const int keys = r.k1 - r.k0;
  Vec top = hn::Set(d, -kInfinity);
  int k = 0;
  if (t.lo[row] <= r.k0 && t.hi[row] >= r.k1) {
    for (; k + kN <= keys; k += kN) top = hn::Max(top, hn::LoadU(d, s + k));
  }
  const int lo = t.lo[row], hi = std::min(t.hi[row], r.k1);
  for (; k < keys; k += kN) {
    const VecI key = hn::Iota(di, r.k0 + k);
    const auto visible =
        hn::RebindMask(d, hn::AndNot(hn::Lt(key, hn::Set(di, lo)), hn::Lt(key, hn::Set(di, hi))));
    const Vec v = hn::IfThenElse(visible, hn::LoadU(d, s + k), hn::Set(d, -kInfinity));
    hn::StoreU(v, d, s + k);
    top = hn::Max(top, v);
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// s[row][key] <- probabilities; the block's maximum of each row. The maximum has no order. Calls step() for
// each vector of the first four rows.
template <class Step>
HWY_INLINE void ProbabilitiesFew(const RowTile& t, const BlockRange& r, float* s, LaneState& state,
                                 const Step& step) {
  const F d;
  const int keys = r.k1 - r.k0;
  for (int row = 0; row < t.rows; ++row) state.max[row] = MaskFew(t, r, row, s + row * kBlock);
  for (int row = 0; row < t.rows; ++row) {
    float* x = s + row * kBlock;
    const Vec shift = hn::Set(d, state.max[row] == -kInfinity ? 0.0f : state.max[row]);
    for (int k = 0; k < keys; k += kN) {
      hn::StoreU(Exp2(d, hn::Sub(hn::LoadU(d, x + k), shift)), d, x + k);
      if (row < 4) step();
    }
  }
}
#endif

#if HWY_TARGET == HWY_AVX3
// Sums of values lie in vectors: those of columns 16v … 16v + 15, or for bf16 of the even and the odd ones of
// 32 columns.
template <CacheKind kKind>
inline constexpr int kSumsOfLoad = kKind == CacheKind::f32 ? 1 : 2;

// sum[row][kVecs vectors] += Σ_k p[k][row] value[k][:], the chains going on from sum. The last vector of bf16
// may hold 16 columns only.
template <CacheKind kKind, int kRows, int kVecs, bool kPrefetch>
HWY_NOINLINE void AddValues(const float* p, int keys, const RawRows& values, float* sum, int64_t sum_stride,
                            [[maybe_unused]] __mmask32 last, PrefetchStream& prefetch) {
  const F d;
  constexpr int kLoads = kVecs / kSumsOfLoad<kKind>;
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, sum + r * sum_stride + v * kN);
  }
  const char* row = values.data;
  PrefetchCursor cursor(prefetch);
  for (int k = 0; k < keys; ++k, row += values.stride) {
    Vec x[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kLoads; ++v) {
      if constexpr (kKind == CacheKind::f32) {
        x[v] = hn::LoadU(d, reinterpret_cast<const float*>(row) + v * kN);
      } else {
        Vec pair;
        if constexpr (kLoads == 1) {
          pair = Vec{_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(last, row))};
        } else {
          pair = hn::LoadU(d, reinterpret_cast<const float*>(row) + v * kN);
        }
        x[2 * v] = LowerOfPair(pair), x[2 * v + 1] = UpperOfPair(pair);
      }
      if constexpr (kPrefetch) cursor.Step();
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = hn::Set(d, p[r * kBlock + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(weight, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, sum + r * sum_stride + v * kN);
  }
}

template <CacheKind kKind, int kRows, bool kPrefetch>
HWY_INLINE void AddValueColumns(const float* p, int keys, RawRows values, float* sum, int64_t columns,
                                int64_t sum_stride, PrefetchStream& prefetch) {
  constexpr int kSums = kSumsOfLoad<kKind>;
  constexpr int64_t kWide = 64;
  int64_t c = 0;
  for (; c + kWide <= columns; c += kWide, values.data += 256 / kSums, sum += 64) {
    AddValues<kKind, kRows, 4, kPrefetch>(p, keys, values, sum, sum_stride, ~__mmask32{0}, prefetch);
  }
  for (; c < columns; c += 16 * kSums, values.data += 64, sum += 16 * kSums) {
    const __mmask32 last = columns - c >= 32 ? ~__mmask32{0} : __mmask32{0xFFFF};
    AddValues<kKind, kRows, kSums, kPrefetch>(p, keys, values, sum, sum_stride, last, prefetch);
  }
}

// to[columns] <- even and odd columns in turn.
HWY_INLINE void JoinColumns(const float* from, int64_t columns, float* to) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int64_t c = 0; c < columns; c += 32) {
    const __m512 even = _mm512_loadu_ps(from + c), odd = _mm512_loadu_ps(from + c + 16);
    _mm512_storeu_ps(to + c, _mm512_permutex2var_ps(even, low, odd));
    if (columns - c > 16) _mm512_storeu_ps(to + c + 16, _mm512_permutex2var_ps(even, high, odd));
  }
}

// p[row][0 … keys) rounded to bf16, so that pairs of keys begin at even positions; zero around them.
struct FewPairs {
  alignas(64) uint16_t p[kFewRows][kBlock + 64];

  HWY_INLINE void Fill(const float* s, int rows, int odd, int keys) {
    for (int row = 0; row < rows; ++row) {
      p[row][0] = 0;
      for (int k = 0; k < keys; k += kN) {
        const __m512 x = _mm512_loadu_ps(s + row * kBlock + k);
        __m256i half;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p[row] + odd + k), half);
      }
      p[row][odd + keys] = 0;
    }
  }
};

// As AddValues, from pairs of keys [pair, end): `odd` keys before the first one are missing. Zero rows stand
// for keys outside.
template <int kRows, int kVecs, bool kPrefetch>
HWY_NOINLINE void AddValuePairs(const FewPairs& weights, int row, int pair, int end, int odd, int keys,
                                const RawRows& values, float* sum, int64_t sum_stride, __mmask32 last,
                                PrefetchStream& prefetch) {
  const F d;
  alignas(64) static constexpr uint16_t kZeros[64] = {};
  constexpr int kLoads = kVecs / 2;
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, sum + r * sum_stride + v * kN);
  }
  PrefetchCursor cursor(prefetch);
  for (; pair < end; ++pair) {
    const int k = 2 * pair - odd;
    const char* first = k >= 0 ? values.data + k * values.stride : reinterpret_cast<const char*>(kZeros);
    const char* second =
        k + 1 < keys ? values.data + (k + 1) * values.stride : reinterpret_cast<const char*>(kZeros);
    Vec x[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kLoads; ++v) {
      const __mmask32 mask = kLoads == 1 ? last : ~__mmask32{0};
      const __m512i a = _mm512_maskz_loadu_epi16(mask, first + 64 * v);
      const __m512i b = _mm512_maskz_loadu_epi16(mask, second + 64 * v);
      x[2 * v] =
          Vec{_mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(a, low), _mm512_slli_epi32(b, 16)))};
      x[2 * v + 1] =
          Vec{_mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_andnot_si512(low, b)))};
      if constexpr (kPrefetch) cursor.Step(), cursor.Step();
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = BroadcastPair(reinterpret_cast<const char*>(weights.p[row + r] + 2 * pair));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] = DotPairs(acc[r][v], weight, x[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, sum + r * sum_stride + v * kN);
  }
}

template <int kRows, bool kPrefetch>
HWY_INLINE void AddPairColumns(const FewPairs& weights, int row, int pair, int end, int odd, int keys,
                               RawRows values, float* sum, int64_t columns, int64_t sum_stride,
                               PrefetchStream& prefetch) {
  int64_t c = 0;
  for (; c + 64 <= columns; c += 64, values.data += 128, sum += 64) {
    AddValuePairs<kRows, 4, kPrefetch>(weights, row, pair, end, odd, keys, values, sum, sum_stride,
                                       ~__mmask32{0}, prefetch);
  }
  for (; c < columns; c += 32, values.data += 64, sum += 32) {
    const __mmask32 last = columns - c >= 32 ? ~__mmask32{0} : __mmask32{0xFFFF};
    AddValuePairs<kRows, 2, kPrefetch>(weights, row, pair, end, odd, keys, values, sum, sum_stride, last,
                                       prefetch);
  }
}

// As ValuesFew, from pairs of keys.
HWY_INLINE void ValuesFewPairs(int rows, const BlockRange& r, const float* p, const RawRows& value,
                               int64_t columns, float* sum, LaneState& state, PrefetchStream& prefetch) {
  FewPairs weights;
  alignas(64) float joined[kFewRows * 256];
  const int odd = r.k0 & 1, keys = r.k1 - r.k0, pairs = (keys + odd + 1) / 2;
  const int64_t stride = (columns + 31) / 32 * 32;
  weights.Fill(p, rows, odd, keys);
  std::fill_n(joined, rows * stride, 0.0f);
  for (int pair = 0, end = 0; pair < pairs; pair = end) {
    end = std::min(pair + RunRest(r.k0 - odd + 2 * pair) / 2, pairs);
    const int first = std::max(2 * pair - odd, 0), last = std::min(2 * end - odd, keys);
    SumRun(p + first, last - first, rows, state.sum);
    EachFewRows(rows, [&](int row, auto count, auto prefetches) HWY_ATTR {
      AddPairColumns<count(), prefetches()>(weights, row, pair, end, odd, keys, value, joined + row * stride,
                                            columns, stride, prefetch);
    });
  }
  std::fill(state.sum + rows, state.sum + kTileRows, 0.0f);
  for (int row = 0; row < rows; ++row) JoinColumns(joined + row * stride, columns, sum + row * columns);
}

// sum[row][:] = Σ_k p[row][k] value[k][:], run after run, cut into the chains of a tile; and the sums of p,
// whose additions run beside the products.
template <CacheKind kKind>
HWY_INLINE void ValuesFew(int rows, const BlockRange& r, const float* p, const RawRows& value,
                          int64_t columns, float* sum, LaneState& state, PrefetchStream& prefetch) {
  constexpr bool kPairs = kKind != CacheKind::f32;
  alignas(64) float chains[kFewRows * 256], total[kFewRows * 256];
  const int64_t stride = kPairs ? (columns + 31) / 32 * 32 : columns;
  std::fill_n(chains, rows * stride, 0.0f);
  std::fill_n(total, rows * stride, 0.0f);
  for (int k = 0, count = 0; k < r.k1 - r.k0; k += count) {
    count = std::min(RunRest(r.k0 + k), r.k1 - r.k0 - k);
    const RawRows run{value.data + k * value.stride, value.stride};
    SumRun(p + k, count, rows, state.sum);
    if (k > 0 && (r.k0 + k) % kKeyChain == 0) EndChains(chains, rows * stride, total);
    EachFewRows(rows, [&](int row, auto count_rows, auto prefetches) HWY_ATTR {
      AddValueColumns<kKind, count_rows(), prefetches()>(p + row * kBlock + k, count, run,
                                                         chains + row * stride, columns, stride, prefetch);
    });
  }
  std::fill(state.sum + rows, state.sum + kTileRows, 0.0f);
  EndChains(chains, rows * stride, total);
  for (int row = 0; row < rows; ++row) {
    if constexpr (kPairs) {
      JoinColumns(total + row * stride, columns, sum + row * columns);
    } else {
      std::copy_n(total + row * stride, columns, sum + row * columns);
    }
  }
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
