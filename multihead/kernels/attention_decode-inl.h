// Few queries, many keys: up to 8 rows of a tile (all heads of a group) on one pass over keys and values.
//
// What counts is the rate at which memory is read. 16 keys are transposed in registers, so that a score is
// still one chain over head_dim (the bits of the tiles) but costs a sixteenth of the broadcasts: 22 instead
// of 69 cycles per key of 128 floats and 4 heads. Values stream row by row. While the scores are made the
// block's values are fetched, while the values are summed the next block's keys. bf16 is widened in
// registers.

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_INL_H_
#endif

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

template <bool kBf16>
HWY_INLINE Vec LoadWide(const char* at, int64_t column) {
  const F d;
  if constexpr (!kBf16) return hn::LoadU(d, reinterpret_cast<const float*>(at) + column);
  const hn::Rebind<uint16_t, F> d16;
  const hn::Rebind<uint32_t, F> d32;
  const auto* x = reinterpret_cast<const uint16_t*>(at) + column;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, x))));
}

HWY_INLINE void FetchBytes(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// s[key][row] of 16 keys and kRows rows; keys beyond `count` repeat the last and are not stored.
template <bool kBf16, int kRows>
HWY_NOINLINE void ScoreSixteen(const RawRows& key, int count, const float* qt, int64_t dim, float* s) {
  const F d;
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
  for (int64_t c = 0; c < dim; c += 16) {
    Vec x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = LoadWide<kBf16>(key.data + std::min(i, count - 1) * key.stride, c);
    TransposeRegisters(x);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r] = hn::MulAdd(x[j], hn::Set(d, qt[(c + j) * kTileRows + r]), acc[r]);
      }
    }
  }
  alignas(64) float turned[kRows][16];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) hn::Store(acc[r], d, turned[r]);
  for (int k = 0; k < count; ++k) {
    for (int r = 0; r < kRows; ++r) s[k * kTileRows + r] = turned[r][k];
  }
}

template <bool kBf16>
HWY_INLINE void ScoreFew(int rows, const BlockRange& r, const RawRows& key, const RawRows& value,
                         const float* qt, int64_t dim, int64_t value_dim, float* s) {
  constexpr int64_t kSize = kBf16 ? 2 : 4;
  for (int k = r.k0; k < r.k1; k += 16) {
    const int count = std::min(16, r.k1 - k);
    const RawRows at{key.data + (k - r.k0) * key.stride, key.stride};
    for (int i = 0; i < count; ++i) {
      FetchBytes(value.data + (k - r.k0 + i) * value.stride, value_dim * kSize);
      if (k + 16 + i < r.k1) {
        const char* next = at.data + (16 + i) * key.stride;
        for (int64_t c = 0; c < dim * kSize; c += 64) __builtin_prefetch(next + c, 0, 3);
      }
    }
    float* to = s + (k - r.k0) * kTileRows;
    if (rows == 1) {
      ScoreSixteen<kBf16, 1>(at, count, qt, dim, to);
    } else if (rows == 2) {
      ScoreSixteen<kBf16, 2>(at, count, qt, dim, to);
    } else if (rows <= 4) {
      ScoreSixteen<kBf16, 4>(at, count, qt, dim, to);
    } else {
      ScoreSixteen<kBf16, 8>(at, count, qt, dim, to);
    }
  }
}

// sum[row][64 columns] += Σ_k p[k][row] value[k][:], the chain going on from sum.
template <bool kBf16, int kRows, int NV>
HWY_NOINLINE void AddValues(const float* p, int keys, const RawRows& value, int64_t column, float* sum,
                            int64_t columns) {
  const F d;
  Vec acc[kRows][NV];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::LoadU(d, sum + r * columns + v * kN);
  }
  for (int k = 0; k < keys; ++k) {
    Vec x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) x[v] = LoadWide<kBf16>(value.data + k * value.stride, column + v * kN);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = hn::Set(d, p[k * kTileRows + r]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(weight, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, sum + r * columns + v * kN);
  }
}

template <bool kBf16, int kRows>
HWY_INLINE void AddValueColumns(const float* p, int keys, const RawRows& value, float* sum, int64_t columns) {
  int64_t c = 0;
  for (; c + 64 <= columns; c += 64) AddValues<kBf16, kRows, 4>(p, keys, value, c, sum + c, columns);
  for (; c < columns; c += 16) AddValues<kBf16, kRows, 1>(p, keys, value, c, sum + c, columns);
}

// sum[row][:] = Σ_k p[k][row] value[k][:], in runs of keys so that both operands stay close; the same bytes
// of the next block's keys are fetched meanwhile.
template <bool kBf16>
HWY_INLINE void ValuesFew(int rows, const BlockRange& r, const float* p, const RawRows& value,
                          const RawRows& next_key, int next_keys, int64_t key_bytes, int64_t columns,
                          float* sum) {
  std::fill_n(sum, rows * columns, 0.0f);
  constexpr int kRun = 16;
  for (int k = 0; k < r.k1 - r.k0; k += kRun) {
    const int count = std::min(kRun, r.k1 - r.k0 - k);
    for (int i = k; i < std::min(k + count, next_keys); ++i) {
      FetchBytes(next_key.data + i * next_key.stride, key_bytes);
    }
    const RawRows at{value.data + k * value.stride, value.stride};
    for (int row = 0; row < rows;) {
      const float* weights = p + k * kTileRows + row;
      float* to = sum + row * columns;
      if (rows - row >= 4) {
        AddValueColumns<kBf16, 4>(weights, count, at, to, columns), row += 4;
      } else if (rows - row >= 2) {
        AddValueColumns<kBf16, 2>(weights, count, at, to, columns), row += 2;
      } else {
        AddValueColumns<kBf16, 1>(weights, count, at, to, columns), row += 1;
      }
    }
  }
}
#else
inline constexpr bool kHasDecode = false;
template <bool kBf16>
void ScoreFew(int, const BlockRange&, const RawRows&, const RawRows&, const float*, int64_t, int64_t,
              float*) {}
template <bool kBf16>
void ValuesFew(int, const BlockRange&, const float*, const RawRows&, const RawRows&, int, int64_t, int64_t,
               float*) {}
#endif

// Whether a call of this kind goes this way (its tiles with at most 8 rows do).
HWY_INLINE bool DecodesFew(const ForwardCall& c, const RowTile& t) {
  return kHasDecode && t.rows <= 8 && !c.has_terms && !c.has_keep && c.p->head_dim % 16 == 0 &&
         c.p->value_dim % 16 == 0;
}

// Probabilities and sums of values of one block from zero: state, s (scratch) and sum[row][value_columns].
template <bool kBf16>
HWY_INLINE void FewBlock(const ForwardCall& c, const RowTile& t, const BlockRange& r, int next_keys,
                         const float* qt, float* s, LaneState& state, float* sum) {
  const AttentionProblem& p = *c.p;
  const RawRows key = RawRowsOf(c, c.key, c.key_strides, t.b, t.kv, r.k0);
  const RawRows value = RawRowsOf(c, c.value, c.value_strides, t.b, t.kv, r.k0);
  const RawRows next{key.data + (r.k1 - r.k0) * key.stride, key.stride};
  ResetState(state);
  ScoreFew<kBf16>(t.rows, r, key, value, qt, p.head_dim, p.value_dim, s);
  BlockRange all = r;  // every row goes through the mask pass, which also finds the maximum
  all.full_begin = all.full_end = r.k0;
  MaskRows(t, all, s, state.max);
  alignas(64) float shift[kTileRows];
  for (int i = 0; i < kTileRows; ++i) shift[i] = state.max[i] == -kInfinity ? 0.0f : state.max[i];
  ExpBlock<false>(t, all, s, shift, state.sum);
  if (p.dropout_p > 0) DropRows(p, t, r, s);
  ValuesFew<kBf16>(t.rows, r, s, value, next, next_keys, p.head_dim * (kBf16 ? 2 : 4), c.value_columns, sum);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
