// Few queries, many keys: up to 8 rows of a tile (all heads of a group) on one pass over keys and values.
//
// What counts is the rate at which memory is read. A score stays one chain over head_dim (the bits of the
// tiles), so 16 keys get into lanes: 4 of their columns at a time, put together from loads of 16 bytes into
// the quarters of a vector and 8 shuffles. 8.0 ns per 4 heads and key of 128 floats, of 13.5 ns that reading
// it takes; transposing 16x16 by 64 shuffles 8.5, through a buffer in L1 11.4-12. Values: 4 rows x 4 vectors
// of sums, twice over 16 rows in L1 (.95-.97 of the read rate), 2 rows x 8 vectors .74-.86.
// Cache lines are asked for in order of addresses and 9 KB ahead, one at each step: 4 KB starve, prefetches
// to L2 only get .6-.75, none .6 (Zen 5, 2026-11). bf16 comes as pairs of columns, which a shift and a mask
// widen.

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#endif

#include <cstring>

#include "multihead/kernels/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Key or value rows in place, in either type.
struct RawRows {
  const char* data = nullptr;
  int64_t stride = 0;  // bytes
};

HWY_INLINE RawRows RawRowsOf(const ForwardCall& c, const void* base, const Strides3& s, int64_t b, int64_t kv,
                             int k0) {
  const int64_t token = c.p->key_begin_row(b) + k0;
  return {static_cast<const char*>(At(base, b * s.batch + kv * s.head + token * s.token, c.bf16)),
          s.token * (c.bf16 ? 2 : 4)};
}

#if HWY_TARGET == HWY_AVX3
inline constexpr bool kHasDecode = true;

// What a cache holds, and what is computed of it.
enum class CacheKind { f32, widened, dots };

// Asks for cache lines in order of addresses: those of `rows` rows, then of `next_rows` rows elsewhere.
struct Ahead {
  const char* at;
  int64_t stride, lines, rows;  // lines: of a row
  const char* next;
  int64_t next_stride, next_lines, next_rows, left;

  struct Rows {
    const char* data;
    int64_t stride, bytes, count;
  };

  HWY_INLINE Ahead(Rows first, Rows second) {
    const auto join = [](Rows& r) {  // neighbours are one long row
      if (r.stride != r.bytes) return;
      r.bytes *= r.count, r.stride = r.bytes;
      r.count = std::min<int64_t>(r.count, 1);
    };
    join(first), join(second);
    at = first.data, stride = first.stride, lines = (first.bytes + 63) / 64, rows = first.count;
    next = second.data, next_stride = second.stride, next_lines = (second.bytes + 63) / 64;
    next_rows = second.count, left = lines;
    if (rows == 0) Turn();
  }

  // The next row; after the last one the line stays where it is.
  HWY_NOINLINE void Turn() {
    if (--rows > 0) {
      at += stride - 64 * lines;
    } else if (next_rows > 0) {
      at = next, stride = next_stride, lines = next_lines, rows = next_rows, next_rows = 0;
    } else {
      at -= 64, stride = 0, lines = 1, rows = 1;
    }
    left = lines;
  }

  HWY_INLINE void Skip(int64_t count) {
    while (count > 0) {
      const int64_t now = std::min(count, left);
      at += 64 * now, count -= now, left -= now;
      if (left > 0) break;
      const bool last = rows <= 1 && next_rows == 0;
      Turn();
      if (last) break;
    }
  }
};

// Ahead's place in registers while a run is computed.
class Asking {
 public:
  HWY_INLINE explicit Asking(Ahead& ahead) : ahead_(ahead), at_(ahead.at), left_(ahead.left) {}
  HWY_INLINE ~Asking() { ahead_.at = at_, ahead_.left = left_; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  HWY_INLINE void Step() {
    __builtin_prefetch(at_, 0, 3);
    at_ += 64;
    if (HWY_LIKELY(--left_ != 0)) return;
    ahead_.at = at_;
    ahead_.Turn();
    at_ = ahead_.at, left_ = ahead_.left;
  }

 private:
  Ahead& ahead_;
  const char* at_;
  int64_t left_;
};

inline constexpr int kRun = 16;              // rows of a step
inline constexpr int64_t kAheadLines = 140;  // not a multiple of 4 KB
inline constexpr int kFewRows = 8;

// 16 bytes at `column` of rows i, 4 + i, 8 + i and 12 + i.
HWY_INLINE __m512 LoadQuarters(const char* from, int64_t stride) {
  const auto load = [&](int i)
                        HWY_ATTR { return _mm_loadu_ps(reinterpret_cast<const float*>(from + i * stride)); };
  __m512 x = _mm512_castps128_ps512(load(0));
  x = _mm512_mask_broadcast_f32x4(x, 0x00F0, load(4));
  x = _mm512_mask_broadcast_f32x4(x, 0x0F00, load(8));
  return _mm512_mask_broadcast_f32x4(x, 0xF000, load(12));
}

// x[j] <- the 4 bytes at offset 4j of 16 rows.
HWY_INLINE void LoadColumns(const char* from, int64_t stride, Vec (&x)[4]) {
  const F d;
  const hn::Repartition<double, F> dd;
  const Vec r0{LoadQuarters(from, stride)}, r1{LoadQuarters(from + stride, stride)};
  const Vec r2{LoadQuarters(from + 2 * stride, stride)}, r3{LoadQuarters(from + 3 * stride, stride)};
  const auto a = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
  const auto b = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
  const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
  const auto h = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
  x[0] = hn::BitCast(d, hn::InterleaveLower(dd, a, b));
  x[1] = hn::BitCast(d, hn::InterleaveUpper(dd, a, b));
  x[2] = hn::BitCast(d, hn::InterleaveLower(dd, e, h));
  x[3] = hn::BitCast(d, hn::InterleaveUpper(dd, e, h));
}

// Two bf16 numbers in each lane: the one at the lower address, and the other.
HWY_INLINE Vec LowerOfPair(Vec x) { return hn::BitCast(F(), hn::ShiftLeft<16>(hn::BitCast(I(), x))); }
HWY_INLINE Vec UpperOfPair(Vec x) {
  return hn::BitCast(F(), hn::And(hn::BitCast(I(), x), hn::Set(I(), static_cast<int32_t>(0xFFFF0000))));
}

// q[column][row] from the tile's lanes.
HWY_INLINE void GatherQuery(const float* qt, int64_t dim, int rows, float* q) {
  for (int64_t c = 0; c < dim; ++c) std::copy_n(qt + c * kTileRows, rows, q + c * rows);
}

// s[row][16 keys] = sums over the columns, in the chains of a tile.
template <CacheKind kKind, int kRows>
HWY_NOINLINE void ScoreRun(const char* keys, int64_t stride, const float* q, int64_t bytes,
                           [[maybe_unused]] float scale, float* s, Ahead& ahead) {
  const F d;
  const int64_t chain =
      ColumnChain(bytes / (kKind == CacheKind::f32 ? 4 : 2)) * (kKind == CacheKind::f32 ? 4 : 2);
  Vec acc[kRows], whole[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = whole[r] = hn::Zero(d);
  Asking asking(ahead);
  for (int64_t c = 0; c < bytes; c += 16) {
    if (kKind != CacheKind::dots && c > 0 && c % chain == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) whole[r] = hn::Add(whole[r], acc[r]), acc[r] = hn::Zero(d);
    }
    Vec x[4];
    LoadColumns(keys + c, stride, x);
    asking.Step(), asking.Step(), asking.Step(), asking.Step();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if constexpr (kKind == CacheKind::f32) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(x[j], hn::Set(d, q[r]), acc[r]);
        q += kRows;
      } else if constexpr (kKind == CacheKind::dots) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = DotPairs(acc[r], x[j], hn::Set(d, q[r]));
        q += kRows;
      } else {
        const Vec lower = LowerOfPair(x[j]), upper = UpperOfPair(x[j]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(lower, hn::Set(d, q[r]), acc[r]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(upper, hn::Set(d, q[kRows + r]), acc[r]);
        q += 2 * kRows;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kKind == CacheKind::dots) {
      acc[r] = hn::Mul(acc[r], hn::Set(d, scale));
    } else {
      acc[r] = hn::Add(whole[r], acc[r]);
    }
    hn::StoreU(acc[r], d, s + r * kBlock);
  }
}

template <CacheKind kKind, int kRows>
HWY_INLINE void ScoreRows(const BlockRange& r, const RawRows& key, const float* qt, int64_t dim, float scale,
                          float* s, char* buffer, Ahead& ahead) {
  const int64_t bytes = dim * (kKind == CacheKind::f32 ? 4 : 2);
  const int keys = r.k1 - r.k0;
  alignas(64) float q[256 * kRows];
  GatherQuery(qt, kKind == CacheKind::dots ? dim / 2 : dim, kRows, q);
  int k = 0;
  for (; k + kRun <= keys; k += kRun) {
    ScoreRun<kKind, kRows>(key.data + k * key.stride, key.stride, q, bytes, scale, s + k, ahead);
  }
  if (k == keys) return;
  for (int i = 0; i < kRun; ++i) {  // nothing beyond the last key is read
    if (k + i < keys) {
      std::memcpy(buffer + i * bytes, key.data + (k + i) * key.stride, static_cast<size_t>(bytes));
    } else {
      std::memset(buffer + i * bytes, 0, static_cast<size_t>(bytes));
    }
  }
  ScoreRun<kKind, kRows>(buffer, bytes, q, bytes, scale, s + k, ahead);
}

// Rows that a pass computes; those beyond the tile's are computed from what lies there and not read back.
HWY_INLINE int PaddedRows(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }

template <CacheKind kKind>
HWY_INLINE void ScoreFew(int rows, const BlockRange& r, const RawRows& key, const float* qt, int64_t dim,
                         float scale, float* s, char* buffer, Ahead& ahead) {
  switch (PaddedRows(rows)) {
    case 1:
      return ScoreRows<kKind, 1>(r, key, qt, dim, scale, s, buffer, ahead);
    case 2:
      return ScoreRows<kKind, 2>(r, key, qt, dim, scale, s, buffer, ahead);
    case 4:
      return ScoreRows<kKind, 4>(r, key, qt, dim, scale, s, buffer, ahead);
    default:
      return ScoreRows<kKind, 8>(r, key, qt, dim, scale, s, buffer, ahead);
  }
}

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

// s[row][key] <- probabilities; the block's maximum of each row. The maximum has no order.
HWY_INLINE void ProbabilitiesFew(const RowTile& t, const BlockRange& r, float* s, LaneState& state,
                                 Ahead& ahead) {
  const F d;
  const int keys = r.k1 - r.k0;
  for (int row = 0; row < t.rows; ++row) state.max[row] = MaskFew(t, r, row, s + row * kBlock);
  Asking asking(ahead);
  for (int row = 0; row < t.rows; ++row) {
    float* x = s + row * kBlock;
    const Vec shift = hn::Set(d, state.max[row] == -kInfinity ? 0.0f : state.max[row]);
    for (int k = 0; k < keys; k += kN) {
      hn::StoreU(Exp2(d, hn::Sub(hn::LoadU(d, x + k), shift)), d, x + k);
      if (row < 4) asking.Step();
    }
  }
}

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

// Sums of values lie in vectors: those of columns 16v … 16v + 15, or for bf16 of the even and the odd ones of
// 32 columns.
template <CacheKind kKind>
inline constexpr int kSumsOfLoad = kKind == CacheKind::f32 ? 1 : 2;

// sum[row][kVecs vectors] += Σ_k p[k][row] value[k][:], the chains going on from sum. The last vector of bf16
// may hold 16 columns only.
template <CacheKind kKind, int kRows, int kVecs, bool kAhead>
HWY_NOINLINE void AddValues(const float* p, int keys, const RawRows& values, float* sum, int64_t sum_stride,
                            [[maybe_unused]] __mmask32 last, Ahead& ahead) {
  const F d;
  constexpr int kLoads = kVecs / kSumsOfLoad<kKind>;
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, sum + r * sum_stride + v * kN);
  }
  const char* row = values.data;
  Asking asking(ahead);
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
      if constexpr (kAhead) asking.Step();
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

template <CacheKind kKind, int kRows, bool kAhead>
HWY_INLINE void AddValueColumns(const float* p, int keys, RawRows values, float* sum, int64_t columns,
                                int64_t sum_stride, Ahead& ahead) {
  constexpr int kSums = kSumsOfLoad<kKind>;
  constexpr int64_t kWide = 64;
  int64_t c = 0;
  for (; c + kWide <= columns; c += kWide, values.data += 256 / kSums, sum += 64) {
    AddValues<kKind, kRows, 4, kAhead>(p, keys, values, sum, sum_stride, ~__mmask32{0}, ahead);
  }
  for (; c < columns; c += 16 * kSums, values.data += 64, sum += 16 * kSums) {
    const __mmask32 last = columns - c >= 32 ? ~__mmask32{0} : __mmask32{0xFFFF};
    AddValues<kKind, kRows, kSums, kAhead>(p, keys, values, sum, sum_stride, last, ahead);
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
template <int kRows, int kVecs, bool kAhead>
HWY_NOINLINE void AddValuePairs(const FewPairs& weights, int row, int pair, int end, int odd, int keys,
                                const RawRows& values, float* sum, int64_t sum_stride, __mmask32 last,
                                Ahead& ahead) {
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
  Asking asking(ahead);
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
      if constexpr (kAhead) asking.Step(), asking.Step();
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

template <int kRows, bool kAhead>
HWY_INLINE void AddPairColumns(const FewPairs& weights, int row, int pair, int end, int odd, int keys,
                               RawRows values, float* sum, int64_t columns, int64_t sum_stride,
                               Ahead& ahead) {
  int64_t c = 0;
  for (; c + 64 <= columns; c += 64, values.data += 128, sum += 64) {
    AddValuePairs<kRows, 4, kAhead>(weights, row, pair, end, odd, keys, values, sum, sum_stride,
                                    ~__mmask32{0}, ahead);
  }
  for (; c < columns; c += 32, values.data += 64, sum += 32) {
    const __mmask32 last = columns - c >= 32 ? ~__mmask32{0} : __mmask32{0xFFFF};
    AddValuePairs<kRows, 2, kAhead>(weights, row, pair, end, odd, keys, values, sum, sum_stride, last, ahead);
  }
}

// As ValuesFew, from pairs of keys.
HWY_INLINE void ValuesFewPairs(int rows, const BlockRange& r, const float* p, const RawRows& value,
                               int64_t columns, float* sum, LaneState& state, Ahead& ahead) {
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
    for (int row = 0; row < rows;) {
      float* to = joined + row * stride;
      if (rows - row >= 4) {
        if (row == 0) {
          AddPairColumns<4, true>(weights, row, pair, end, odd, keys, value, to, columns, stride, ahead);
        } else {
          AddPairColumns<4, false>(weights, row, pair, end, odd, keys, value, to, columns, stride, ahead);
        }
        row += 4;
      } else if (rows - row >= 2) {
        AddPairColumns<2, true>(weights, row, pair, end, odd, keys, value, to, columns, stride, ahead);
        row += 2;
      } else {
        AddPairColumns<1, true>(weights, row, pair, end, odd, keys, value, to, columns, stride, ahead);
        row += 1;
      }
    }
  }
  std::fill(state.sum + rows, state.sum + kTileRows, 0.0f);
  for (int row = 0; row < rows; ++row) JoinColumns(joined + row * stride, columns, sum + row * columns);
}

// to += from, from <- 0.
HWY_INLINE void EndChains(float* from, int64_t count, float* to) {
  const F d;
  for (int64_t i = 0; i < count; i += kN) {
    hn::Store(hn::Add(hn::Load(d, to + i), hn::Load(d, from + i)), d, to + i);
    hn::Store(hn::Zero(d), d, from + i);
  }
}

// sum[row][:] = Σ_k p[row][k] value[k][:], run after run, cut into the chains of a tile; and the sums of p,
// whose additions run beside the products.
template <CacheKind kKind>
HWY_INLINE void ValuesFew(int rows, const BlockRange& r, const float* p, const RawRows& value,
                          int64_t columns, float* sum, LaneState& state, Ahead& ahead) {
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
    for (int row = 0; row < rows;) {
      const float* weights = p + row * kBlock + k;
      float* to = chains + row * stride;
      if (rows - row >= 4) {
        if (row == 0) {
          AddValueColumns<kKind, 4, true>(weights, count, run, to, columns, stride, ahead);
        } else {
          AddValueColumns<kKind, 4, false>(weights, count, run, to, columns, stride, ahead);
        }
        row += 4;
      } else if (rows - row >= 2) {
        AddValueColumns<kKind, 2, true>(weights, count, run, to, columns, stride, ahead), row += 2;
      } else {
        AddValueColumns<kKind, 1, true>(weights, count, run, to, columns, stride, ahead), row += 1;
      }
    }
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
#else
inline constexpr bool kHasDecode = false;
#endif

// Whether a call of this kind goes this way (its tiles with at most 8 rows do).
HWY_INLINE bool DecodesFew(const ForwardCall& c, const RowTile& t) {
  return kHasDecode && !UsesTiles(c) && t.rows <= 8 && !c.has_terms && !c.has_keep && c.p->dropout_p <= 0 &&
         c.p->head_dim % 16 == 0 && c.p->value_dim % 16 == 0 &&
         std::max(c.p->head_dim, c.p->value_dim) <= 256;
}

#if HWY_TARGET == HWY_AVX3
// Probabilities and sums of values of one block from zero: state, s (scratch) and sum[row][value_columns].
template <CacheKind kKind>
HWY_INLINE void FewBlockOf(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* qt,
                           const BlockBuffers& b, LaneState& state, float* sum) {
  const AttentionProblem& p = *c.p;
  const int64_t size = kKind == CacheKind::f32 ? 4 : 2, keys = r.k1 - r.k0;
  const RawRows key = RawRowsOf(c, c.key, c.key_strides, t.b, t.kv, r.k0);
  const RawRows value = RawRowsOf(c, c.value, c.value_strides, t.b, t.kv, r.k0);
  const Ahead::Rows these{key.data, key.stride, p.head_dim * size, keys};
  const Ahead::Rows values{value.data, value.stride, p.value_dim * size, keys};
  const Ahead::Rows others{key.data + keys * key.stride, key.stride, p.head_dim * size,
                           std::min<int64_t>(t.end - r.k1, kBlock)};
  ResetState(state);
  Ahead ahead(these, values);
  ahead.Skip(kAheadLines);
  ScoreFew<kKind>(t.rows, r, key, qt, p.head_dim, ScoreScale(c), b.s, reinterpret_cast<char*>(b.shadow),
                  ahead);
  ProbabilitiesFew(t, r, b.s, state, ahead);
  Ahead then(values, others);
  then.Skip(kAheadLines + std::min<int64_t>(t.rows, 4) * ((keys + kN - 1) / kN));
  if constexpr (kKind == CacheKind::dots) {
    ValuesFewPairs(t.rows, r, b.s, value, c.value_columns, sum, state, then);
  } else {
    ValuesFew<kKind>(t.rows, r, b.s, value, c.value_columns, sum, state, then);
  }
}

HWY_INLINE void FewBlock(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* qt,
                         const BlockBuffers& b, LaneState& state, float* sum) {
  if (UsesDots(c)) {
    FewBlockOf<CacheKind::dots>(c, t, r, qt, b, state, sum);
  } else if (c.bf16) {
    FewBlockOf<CacheKind::widened>(c, t, r, qt, b, state, sum);
  } else {
    FewBlockOf<CacheKind::f32>(c, t, r, qt, b, state, sum);
  }
}
#else
HWY_INLINE void FewBlock(const ForwardCall&, const RowTile&, const BlockRange&, const float*,
                         const BlockBuffers&, LaneState&, float*) {}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
