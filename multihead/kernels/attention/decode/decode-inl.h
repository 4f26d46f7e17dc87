// Few queries, many keys: up to 8 rows of a tile (all heads of a group) on one pass over keys and values.
//
// What counts is the rate at which memory is read. A score is a sum over head_dim in the order of the tiles,
// so 16 keys get into lanes: 4 of their columns at a time, put together from loads of 16 bytes into the
// quarters of a vector and 8 shuffles. 8.0 ns per 4 heads and key of 128 floats, of 13.5 ns that reading it
// takes; transposing 16x16 by 64 shuffles 8.5, through a buffer in L1 11.4-12 (Zen 5, 2026-11).

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_INL_H_
#endif

#include <cstring>

#include "multihead/kernels/attention/decode/decode_eight-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Whether a call of this kind goes this way (its tiles with at most 8 rows do).
HWY_INLINE bool DecodesFew(const ForwardCall& c, const RowTile& t) {
  return t.rows <= 8 && !c.has_terms && !c.has_keep && c.p->dropout_p <= 0 && c.p->head_dim % 16 == 0 &&
         c.p->value_dim % 16 == 0 && std::max(c.p->head_dim, c.p->value_dim) <= 256;
}

#if HWY_TARGET == HWY_AVX3
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
  for (int i = 0; i < 4; ++i) x[i] = Vec{LoadQuarters(from + i * stride, stride)};
  TransposeWithinBlocks(F(), x, x);
}

// s[row][16 keys] = sums over the columns, in the chains of a tile.
template <CacheKind kKind, int kRows>
HWY_NOINLINE void ScoreRun(const char* keys, int64_t stride, const float* q, int64_t bytes,
                           [[maybe_unused]] float scale, float* s, PrefetchStream& prefetch) {
  const F d;
  const int64_t chain =
      ColumnChain(bytes / (kKind == CacheKind::f32 ? 4 : 2)) * (kKind == CacheKind::f32 ? 4 : 2);
  Vec acc[kRows], whole[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = whole[r] = hn::Zero(d);
  PrefetchCursor cursor(prefetch);
  for (int64_t c = 0; c < bytes; c += 16) {
    if (kKind != CacheKind::pairs && c > 0 && c % chain == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) whole[r] = hn::Add(whole[r], acc[r]), acc[r] = hn::Zero(d);
    }
    Vec x[4];
    LoadColumns(keys + c, stride, x);
    cursor.Step(), cursor.Step(), cursor.Step(), cursor.Step();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if constexpr (kKind == CacheKind::f32) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(x[j], hn::Set(d, q[r]), acc[r]);
        q += kRows;
      } else if constexpr (kKind == CacheKind::pairs) {
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
    if constexpr (kKind == CacheKind::pairs) {
      acc[r] = hn::Mul(acc[r], hn::Set(d, scale));
    } else {
      acc[r] = hn::Add(whole[r], acc[r]);
    }
    hn::StoreU(acc[r], d, s + r * kBlock);
  }
}

template <CacheKind kKind, int kRows>
HWY_INLINE void ScoreRows(const BlockRange& r, const RawRows& key, const float* qt, int64_t dim, float scale,
                          float* s, char* buffer, PrefetchStream& prefetch) {
  const int64_t bytes = dim * (kKind == CacheKind::f32 ? 4 : 2);
  const int keys = r.k1 - r.k0;
  alignas(64) float q[256 * kRows];
  GatherQuery(qt, kKind == CacheKind::pairs ? dim / 2 : dim, kRows, q);
  int k = 0;
  for (; k + kRun <= keys; k += kRun) {
    ScoreRun<kKind, kRows>(key.data + k * key.stride, key.stride, q, bytes, scale, s + k, prefetch);
  }
  if (k == keys) return;
  for (int i = 0; i < kRun; ++i) {  // nothing beyond the last key is read
    if (k + i < keys) {
      std::memcpy(buffer + i * bytes, key.data + (k + i) * key.stride, static_cast<size_t>(bytes));
    } else {
      std::memset(buffer + i * bytes, 0, static_cast<size_t>(bytes));
    }
  }
  ScoreRun<kKind, kRows>(buffer, bytes, q, bytes, scale, s + k, prefetch);
}

template <CacheKind kKind>
HWY_INLINE void ScoreFew(int rows, const BlockRange& r, const RawRows& key, const float* qt, int64_t dim,
                         float scale, float* s, char* buffer, PrefetchStream& prefetch) {
  switch (PaddedRows(rows)) {
    case 1:
      return ScoreRows<kKind, 1>(r, key, qt, dim, scale, s, buffer, prefetch);
    case 2:
      return ScoreRows<kKind, 2>(r, key, qt, dim, scale, s, buffer, prefetch);
    case 4:
      return ScoreRows<kKind, 4>(r, key, qt, dim, scale, s, buffer, prefetch);
    default:
      return ScoreRows<kKind, 8>(r, key, qt, dim, scale, s, buffer, prefetch);
  }
}

// Probabilities and sums of values of one block from zero: state, s (scratch) and sum[row][value_columns].
template <CacheKind kKind>
HWY_INLINE void FewBlockOf(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* qt,
                           const BlockBuffers& b, LaneState& state, float* sum) {
  const AttentionProblem& p = *c.p;
  const int64_t size = kKind == CacheKind::f32 ? 4 : 2, keys = r.k1 - r.k0;
  const RawRows key = RawRowsOf(c, c.key, t.b, t.kv, r.k0);
  const RawRows value = RawRowsOf(c, c.value, t.b, t.kv, r.k0);
  const PrefetchStream::Rows these{key.data, key.stride, p.head_dim * size, keys};
  const PrefetchStream::Rows values{value.data, value.stride, p.value_dim * size, keys};
  const PrefetchStream::Rows others{key.data + keys * key.stride, key.stride, p.head_dim * size,
                                    std::min<int64_t>(t.end - r.k1, kBlock)};
  ResetState(state);
  PrefetchStream prefetch(these, values);
  prefetch.Skip(kPrefetchLines);
  ScoreFew<kKind>(t.rows, r, key, qt, p.head_dim, ScoreScale(c), b.s, reinterpret_cast<char*>(b.shadow),
                  prefetch);
  {
    PrefetchCursor cursor(prefetch);
    ProbabilitiesFew(t, r, b.s, state, [&]() HWY_ATTR { cursor.Step(); });
  }
  PrefetchStream then(values, others);
  then.Skip(kPrefetchLines + std::min<int64_t>(t.rows, 4) * ((keys + kN - 1) / kN));
  if constexpr (kKind == CacheKind::pairs) {
    ValuesFewPairs(t.rows, r, b.s, value, c.value_columns, sum, state, then);
  } else {
    ValuesFew<kKind>(t.rows, r, b.s, value, c.value_columns, sum, state, then);
  }
}

HWY_INLINE void FewBlock(const PairsEngine&, const ForwardCall& c, const RowTile& t, const BlockRange& r,
                         const float* qt, const BlockBuffers& b, LaneState& state, float* sum) {
  FewBlockOf<CacheKind::pairs>(c, t, r, qt, b, state, sum);
}
HWY_INLINE void FewBlock(const F32Engine&, const ForwardCall& c, const RowTile& t, const BlockRange& r,
                         const float* qt, const BlockBuffers& b, LaneState& state, float* sum) {
  c.int8   ? EightBlockOf<CacheKind::int8>(c, t, r, qt, b, state, sum)
  : c.bf16 ? FewBlockOf<CacheKind::widened>(c, t, r, qt, b, state, sum)
           : FewBlockOf<CacheKind::f32>(c, t, r, qt, b, state, sum);
}
#elif HWY_TARGET == HWY_AVX2
HWY_INLINE void FewBlock(const F32Engine&, const ForwardCall& c, const RowTile& t, const BlockRange& r,
                         const float* qt, const BlockBuffers& b, LaneState& state, float* sum) {
  c.int8   ? EightBlockOf<CacheKind::int8>(c, t, r, qt, b, state, sum)
  : c.bf16 ? EightBlockOf<CacheKind::widened>(c, t, r, qt, b, state, sum)
           : EightBlockOf<CacheKind::f32>(c, t, r, qt, b, state, sum);
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
