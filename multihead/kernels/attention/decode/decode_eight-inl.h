// Few queries, many keys, in vectors of 8: every cache on AVX2, and int8 on AVX-512.
//
// A word of 4 bytes holds one f32, two bf16 or four int8 of neighbouring columns. For the scores 8 keys get
// into lanes, 4 of their words at a time; for the sums of values columns are lanes. Every number becomes the
// f32 that a tile of more rows would stage and meets the same chains of FMAs, so that the bits are those of
// the tiles.
//
// Beside the tiles on AVX2: f32 1.3-1.6 times for one or three rows, 2.0 for four; bf16 2.1-2.7; int8 1.8-2.5
// times f32 (2k and 8k keys of 64 and 128, one thread, CPU time; Zen 3, 2026-11).

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_EIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_EIGHT_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_EIGHT_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_EIGHT_INL_H_
#endif

#include <cstring>

#include "multihead/kernels/attention/decode/decode_values-inl.h"
#include "multihead/kernels/attention/decode/int8_rows.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
using F8 = hn::CappedTag<float, 8>;
using I8 = hn::Rebind<int32_t, F8>;
using Vec8 = hn::Vec<F8>;
inline constexpr int kEight = 8;

template <CacheKind kKind>
inline constexpr int kNumbersOfWord = kKind == CacheKind::f32    ? 1
                                      : kKind == CacheKind::int8 ? 4
                                                                 : 2;

// Bytes of `dim` numbers, and of a row, which in int8 ends with the scale.
template <CacheKind kKind>
HWY_INLINE int64_t NumberBytes(int64_t dim) {
  return 4 * dim / kNumbersOfWord<kKind>;
}
template <CacheKind kKind>
HWY_INLINE int64_t RowBytes(int64_t dim) {
  return NumberBytes<kKind>(dim) + (kKind == CacheKind::int8 ? 4 : 0);
}

template <CacheKind kKind>
HWY_INLINE float ScaleOfRow(const char* row, int64_t dim) {
  float scale = 0;
  if constexpr (kKind == CacheKind::int8) std::memcpy(&scale, row + NumberBytes<kKind>(dim), sizeof(scale));
  return scale;
}

// x[j] <- word j at `from` of 8 rows.
HWY_INLINE void LoadWords(const char* from, int64_t stride, Vec8 (&x)[4]) {
  const auto rows = [&](int i) HWY_ATTR {
    const auto load = [&](int row) HWY_ATTR {
      return _mm_loadu_ps(reinterpret_cast<const float*>(from + row * stride));
    };
    return Vec8{_mm256_insertf128_ps(_mm256_castps128_ps256(load(i)), load(4 + i), 1)};
  };
  x[0] = rows(0), x[1] = rows(1), x[2] = rows(2), x[3] = rows(3);
  TransposeWithinBlocks(F8(), x, x);
}

// Number kAt of every word.
template <CacheKind kKind, int kAt>
HWY_INLINE Vec8 NumbersAt(Vec8 words, [[maybe_unused]] Vec8 scales) {
  const F8 d;
  const I8 di;
  const auto bits = hn::BitCast(di, words);
  if constexpr (kKind == CacheKind::f32) {
    return words;
  } else if constexpr (kKind == CacheKind::int8) {
    return hn::Mul(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kAt>(bits))), scales);
  } else if constexpr (kAt == 0) {
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    return hn::BitCast(d, hn::And(bits, hn::Set(di, static_cast<int32_t>(0xFFFF0000))));
  }
}

// s[row][8 keys] = sums over the columns, in the chains of a tile.
template <CacheKind kKind, int kRows>
HWY_NOINLINE void ScoreEight(const char* keys, int64_t stride, const float* q, int64_t dim, float* s,
                             PrefetchStream& prefetch) {
  const F8 d;
  const int64_t bytes = NumberBytes<kKind>(dim), chain = NumberBytes<kKind>(ColumnChain(dim));
  HWY_ALIGN float scale[kEight];
  for (int k = 0; k < kEight; ++k) scale[k] = ScaleOfRow<kKind>(keys + k * stride, dim);
  const Vec8 scales = hn::Load(d, scale);
  Vec8 acc[kRows], whole[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = whole[r] = hn::Zero(d);
  const auto add = [&](Vec8 x) HWY_ATTR {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(x, hn::Set(d, q[r]), acc[r]);
    q += kRows;
  };
  PrefetchCursor cursor(prefetch);
  for (int64_t c = 0; c < bytes; c += 16) {
    if (c > 0 && c % chain == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) whole[r] = hn::Add(whole[r], acc[r]), acc[r] = hn::Zero(d);
    }
    Vec8 x[4];
    LoadWords(keys + c, stride, x);
    cursor.Step(), cursor.Step();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      add(NumbersAt<kKind, 0>(x[j], scales));
      if constexpr (kKind != CacheKind::f32) add(NumbersAt<kKind, 1>(x[j], scales));
      if constexpr (kKind == CacheKind::int8) {
        add(NumbersAt<kKind, 2>(x[j], scales));
        add(NumbersAt<kKind, 3>(x[j], scales));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) hn::StoreU(hn::Add(whole[r], acc[r]), d, s + r * kBlock);
}

template <CacheKind kKind, int kRows>
HWY_INLINE void ScoreEights(const BlockRange& r, const RawRows& key, const float* qt, int64_t dim, float* s,
                            char* buffer, PrefetchStream& prefetch) {
  const int keys = r.k1 - r.k0;
  alignas(64) float q[256 * kRows];
  GatherQuery(qt, dim, kRows, q);
  int k = 0;
  for (; k + kEight <= keys; k += kEight) {
    ScoreEight<kKind, kRows>(key.data + k * key.stride, key.stride, q, dim, s + k, prefetch);
  }
  if (k == keys) return;
  const int64_t bytes = RowBytes<kKind>(dim);
  std::memset(buffer, 0, static_cast<size_t>(kEight * bytes));
  for (int i = 0; k + i < keys; ++i) {  // nothing beyond the last key is read
    std::memcpy(buffer + i * bytes, key.data + (k + i) * key.stride, static_cast<size_t>(bytes));
  }
  ScoreEight<kKind, kRows>(buffer, bytes, q, dim, s + k, prefetch);
}

// 8 numbers of a row from column `c` on.
template <CacheKind kKind>
HWY_INLINE Vec8 EightColumns(const char* row, int64_t c, [[maybe_unused]] Vec8 scale) {
  const F8 d;
  const I8 di;
  if constexpr (kKind == CacheKind::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + c);
  } else if constexpr (kKind == CacheKind::int8) {
    const hn::Rebind<int8_t, F8> d8;
    return hn::Mul(
        hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(row) + c))), scale);
  } else {
    const hn::Rebind<uint16_t, F8> d16;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + c))));
  }
}

// sum[row][kVecs vectors from column c on] += Σ_k p[row][k] value[k][:], the chains going on from sum.
template <CacheKind kKind, int kRows, int kVecs, bool kPrefetch>
HWY_NOINLINE void AddEights(const float* p, int keys, const RawRows& values, int64_t dim, int64_t c,
                            float* sum, int64_t sum_stride, PrefetchStream& prefetch) {
  const F8 d;
  Vec8 acc[kRows][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, sum + r * sum_stride + c + v * kEight);
  }
  constexpr int64_t kBytes = 4 * kVecs * kEight / kNumbersOfWord<kKind>;
  const bool steps = NumberBytes<kKind>(c) % 64 == 0;  // once a line
  const char* row = values.data;
  PrefetchCursor cursor(prefetch);
  for (int k = 0; k < keys; ++k, row += values.stride) {
    const Vec8 scale = hn::Set(d, ScaleOfRow<kKind>(row, dim));
    Vec8 x[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) x[v] = EightColumns<kKind>(row, c + v * kEight, scale);
    if constexpr (kPrefetch && kBytes == 128) cursor.Step();
    if (kPrefetch && steps) cursor.Step();
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec8 weight = hn::Set(d, p[r * kBlock + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(weight, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, sum + r * sum_stride + c + v * kEight);
  }
}

// As ValuesFew.
template <CacheKind kKind>
HWY_INLINE void ValuesEight(int rows, const BlockRange& r, const float* p, const RawRows& value,
                            int64_t columns, float* sum, LaneState& state, PrefetchStream& prefetch) {
  alignas(64) float chains[kFewRows * 256];
  float* total = sum;
  std::fill_n(chains, rows * columns, 0.0f);
  std::fill_n(total, rows * columns, 0.0f);
  for (int k = 0, count = 0; k < r.k1 - r.k0; k += count) {
    count = std::min(RunRest(r.k0 + k), r.k1 - r.k0 - k);
    const RawRows run{value.data + k * value.stride, value.stride};
    SumRun(p + k, count, rows, state.sum);
    if (k > 0 && (r.k0 + k) % kKeyChain == 0) EndChains(chains, rows * columns, total);
    const auto add = [&](int row, auto count_rows, auto prefetches) HWY_ATTR {
      constexpr int kRows = count_rows(), kWide = kRows >= 3 ? 2 : 4;  // sums stay in 8 registers
      const float* weights = p + row * kBlock + k;
      float* to = chains + row * columns;
      int64_t c = 0;
      for (; c + kWide * kEight <= columns; c += kWide * kEight) {
        AddEights<kKind, kRows, kWide, prefetches()>(weights, count, run, columns, c, to, columns, prefetch);
      }
      if (c < columns) {
        AddEights<kKind, kRows, 2, prefetches()>(weights, count, run, columns, c, to, columns, prefetch);
      }
    };
    rows == 3 ? add(0, std::integral_constant<int, 3>(), std::true_type()) : EachFewRows(rows, add);
  }
  std::fill(state.sum + rows, state.sum + kTileRows, 0.0f);
  EndChains(chains, rows * columns, total);
}

// As FewBlockOf.
template <CacheKind kKind>
HWY_INLINE void EightBlockOf(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* qt,
                             const BlockBuffers& b, LaneState& state, float* sum) {
  const int64_t keys = r.k1 - r.k0, key_dim = c.p->head_dim, value_dim = c.p->value_dim;
  const RawRows key = RawRowsOf(c, c.key, t.b, t.kv, r.k0), value = RawRowsOf(c, c.value, t.b, t.kv, r.k0);
  const auto rows = [](const RawRows& x, int64_t dim, int64_t count) HWY_ATTR {
    return PrefetchStream::Rows{x.data, x.stride, RowBytes<kKind>(dim), count};
  };
  const PrefetchStream::Rows values = rows(value, value_dim, keys);
  const RawRows next{key.data + keys * key.stride, key.stride};
  char* buffer = reinterpret_cast<char*>(b.shadow);
  ResetState(state);
  PrefetchStream prefetch(rows(key, key_dim, keys), values);
  prefetch.Skip(kPrefetchLines);
  switch (t.rows == 3 ? 3 : PaddedRows(t.rows)) {
    case 1:
      ScoreEights<kKind, 1>(r, key, qt, key_dim, b.s, buffer, prefetch);
      break;
    case 2:
      ScoreEights<kKind, 2>(r, key, qt, key_dim, b.s, buffer, prefetch);
      break;
    case 3:
      ScoreEights<kKind, 3>(r, key, qt, key_dim, b.s, buffer, prefetch);
      break;
    case 4:
      ScoreEights<kKind, 4>(r, key, qt, key_dim, b.s, buffer, prefetch);
      break;
    default:
      ScoreEights<kKind, 8>(r, key, qt, key_dim, b.s, buffer, prefetch);
  }
  ProbabilitiesFew(t, r, b.s, state, [] {});
  PrefetchStream then(values, rows(next, key_dim, std::min<int64_t>(t.end - r.k1, kBlock)));
  then.Skip(kPrefetchLines);
  ValuesEight<kKind>(t.rows, r, b.s, value, c.value_columns, sum, state, then);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
