// Few queries, many keys: up to 8 rows of a tile (all heads of a group) on one pass over keys and values.
//
// What counts is the rate at which memory is read. 16 keys are transposed in registers, so that a score is
// still one chain over head_dim (the bits of the tiles) but costs a sixteenth of the broadcasts: 22 instead
// of 69 cycles per key of 128 floats and 4 heads. Runs of 32 rows pass through buffers in L1. bf16 is widened
// in registers.

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

// Two buffers of 32 rows: one is worked on while the other fills.
inline constexpr int kRun = 32;
inline constexpr int64_t kRunStride = 1024 + 64;  // bytes: a constant for the addresses, not a power of two

// Copies rows into a buffer in L1 while other work runs, a few at each call and in order of addresses.
// Ordinary loads keep the hardware's stream detection going and are never dropped; software prefetches in
// front of strided reads got 16-24 GB/s of 36.
struct Stream {
  const char* row = nullptr;
  int64_t stride = 0, bytes = 0;  // per row
  int64_t rows = 0;               // left
  char* to = nullptr;

  HWY_INLINE void Copy(int64_t count) {
    const hn::ScalableTag<uint8_t> d8;
    const hn::Half<decltype(d8)> half;
    const int64_t ahead = std::max<int64_t>(1, 4096 / std::max<int64_t>(bytes, 1)) * stride;
    for (count = std::min(count, rows), rows -= count; count > 0; --count, row += stride, to += kRunStride) {
      const auto* from = reinterpret_cast<const uint8_t*>(row);
      int64_t at = 0;
      for (; at + 64 <= bytes; at += 64) {
        __builtin_prefetch(row + ahead + at, 0, 3);
        hn::StoreU(hn::LoadU(d8, from + at), d8, reinterpret_cast<uint8_t*>(to + at));
      }
      if (at < bytes) hn::StoreU(hn::LoadU(half, from + at), half, reinterpret_cast<uint8_t*>(to + at));
    }
  }
};

// s[row][key] of 32 keys in a buffer and kRows rows. Two groups of 16 keys in turn: with 4 rows one group has
// only 4 chains of FMAs, which would wait for each other.
template <bool kBf16, int kRows>
HWY_NOINLINE void ScoreRun(const char* keys, const float* qt, int64_t dim, float* s, Stream& next) {
  const F d;
  Vec acc[2][kRows];
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[g][r] = hn::Zero(d);
  }
  const int64_t per_step = (16 * kRun + dim - 1) / dim;  // all rows of a run in the end
  int64_t left = kRun;
  for (int64_t c = 0; c < dim; c += 16) {
    next.Copy(std::min(per_step, left));
    left -= std::min(per_step, left);
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      Vec x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = LoadWide<kBf16>(keys + (16 * g + i) * kRunStride, c);
      TransposeRegisters(x);
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          acc[g][r] = hn::MulAdd(x[j], hn::Set(d, qt[(c + j) * kTileRows + r]), acc[g][r]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) hn::StoreU(acc[g][r], d, s + r * kBlock + 16 * g);
  }
}

template <bool kBf16>
HWY_INLINE void ScoreFew(int rows, const BlockRange& r, const RawRows& key, const float* qt, int64_t dim,
                         float* s, char* buffer) {
  char* halves[2] = {buffer, buffer + kRun * kRunStride};
  Stream next{key.data, key.stride, dim * (kBf16 ? 2 : 4), r.k1 - r.k0, halves[0]};
  next.Copy(kRun);
  for (int k = 0; k < r.k1 - r.k0; k += kRun) {
    const char* keys = halves[k / kRun % 2];
    next.to = halves[1 - k / kRun % 2];
    if (rows == 1) {
      ScoreRun<kBf16, 1>(keys, qt, dim, s + k, next);
    } else if (rows == 2) {
      ScoreRun<kBf16, 2>(keys, qt, dim, s + k, next);
    } else if (rows <= 4) {
      ScoreRun<kBf16, 4>(keys, qt, dim, s + k, next);
    } else {
      ScoreRun<kBf16, 8>(keys, qt, dim, s + k, next);
    }
  }
}

// s[row][key] <- probabilities; the block's maximum and sum of each row. The sum runs over keys in order, as
// in a tile; the maximum has no order.
HWY_INLINE void ProbabilitiesFew(const RowTile& t, const BlockRange& r, float* s, LaneState& state) {
  const F d;
  const I di;
  const int keys = r.k1 - r.k0;
  for (int row = 0; row < t.rows; ++row) {
    float* x = s + row * kBlock;
    const VecI lo = hn::Set(di, t.lo[row]), hi = hn::Set(di, std::min(t.hi[row], r.k1));
    Vec top = hn::Set(d, -kInfinity);
    for (int k = 0; k < keys; k += kN) {
      const VecI key = hn::Iota(di, r.k0 + k);
      const auto visible = hn::RebindMask(d, hn::AndNot(hn::Lt(key, lo), hn::Lt(key, hi)));
      const Vec v = hn::IfThenElse(visible, hn::LoadU(d, x + k), hn::Set(d, -kInfinity));
      hn::StoreU(v, d, x + k);
      top = hn::Max(top, v);
    }
    const float max = hn::GetLane(hn::MaxOfLanes(d, top));
    const Vec shift = hn::Set(d, max == -kInfinity ? 0.0f : max);
    for (int k = 0; k < keys; k += kN) hn::StoreU(Exp2(d, hn::Sub(hn::LoadU(d, x + k), shift)), d, x + k);
    state.max[row] = max;
  }
  for (int row = 0; row < t.rows;
       row += 4) {  // four chains at a time; rows beyond the last are not read back
    float a = 0, b = 0, c = 0, e = 0;
    const float* x = s + row * kBlock;
    for (int k = 0; k < keys; ++k) {
      a += x[k], b += x[kBlock + k], c += x[2 * kBlock + k], e += x[3 * kBlock + k];
    }
    state.sum[row] = a, state.sum[row + 1] = b, state.sum[row + 2] = c, state.sum[row + 3] = e;
  }
  std::fill(state.sum + t.rows, state.sum + kTileRows, 0.0f);
}

// sum[row][64 columns] += Σ_k p[k][row] value[k][:], the chain going on from sum.
template <bool kBf16, int kRows, int NV>
HWY_NOINLINE void AddValues(const float* p, int keys, const char* values, int64_t column, float* sum,
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
    for (int v = 0; v < NV; ++v) x[v] = LoadWide<kBf16>(values + k * kRunStride, column + v * kN);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = hn::Set(d, p[r * kBlock + k]);
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
HWY_INLINE void AddValueColumns(const float* p, int keys, const char* values, float* sum, int64_t columns) {
  int64_t c = 0;
  for (; c + 64 <= columns; c += 64) AddValues<kBf16, kRows, 4>(p, keys, values, c, sum + c, columns);
  for (; c < columns; c += 16) AddValues<kBf16, kRows, 1>(p, keys, values, c, sum + c, columns);
}

// sum[row][:] = Σ_k p[row][k] value[k][:], run after run.
template <bool kBf16>
HWY_INLINE void ValuesFew(int rows, const BlockRange& r, const float* p, const RawRows& value,
                          int64_t columns, float* sum, char* buffer) {
  std::fill_n(sum, rows * columns, 0.0f);
  char* halves[2] = {buffer, buffer + kRun * kRunStride};
  Stream next{value.data, value.stride, columns * (kBf16 ? 2 : 4), r.k1 - r.k0, halves[0]};
  next.Copy(kRun);
  for (int k = 0; k < r.k1 - r.k0; k += kRun) {
    const int count = std::min(kRun, r.k1 - r.k0 - k);
    const char* values = halves[k / kRun % 2];
    next.to = halves[1 - k / kRun % 2];
    next.Copy(kRun);
    for (int row = 0; row < rows;) {
      const float* weights = p + row * kBlock + k;
      float* to = sum + row * columns;
      if (rows - row >= 4) {
        AddValueColumns<kBf16, 4>(weights, count, values, to, columns), row += 4;
      } else if (rows - row >= 2) {
        AddValueColumns<kBf16, 2>(weights, count, values, to, columns), row += 2;
      } else {
        AddValueColumns<kBf16, 1>(weights, count, values, to, columns), row += 1;
      }
    }
  }
}
#else
inline constexpr bool kHasDecode = false;
template <bool kBf16>
void ScoreFew(int, const BlockRange&, const RawRows&, const float*, int64_t, float*, char*) {}
template <bool kBf16>
void ValuesFew(int, const BlockRange&, const float*, const RawRows&, int64_t, float*, char*) {}
HWY_INLINE void ProbabilitiesFew(const RowTile&, const BlockRange&, float*, LaneState&) {}
#endif

// Whether a call of this kind goes this way (its tiles with at most 8 rows do).
HWY_INLINE bool DecodesFew(const ForwardCall& c, const RowTile& t) {
  return kHasDecode && t.rows <= 8 && !c.has_terms && !c.has_keep && c.p->dropout_p <= 0 &&
         c.p->head_dim % 16 == 0 && c.p->value_dim % 16 == 0 &&
         std::max(c.p->head_dim, c.p->value_dim) <= 256;
}

// Probabilities and sums of values of one block from zero: state, s (scratch) and sum[row][value_columns].
template <bool kBf16>
HWY_INLINE void FewBlock(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* qt,
                         const BlockBuffers& b, LaneState& state, float* sum) {
  const AttentionProblem& p = *c.p;
  const RawRows key = RawRowsOf(c, c.key, c.key_strides, t.b, t.kv, r.k0);
  const RawRows value = RawRowsOf(c, c.value, c.value_strides, t.b, t.kv, r.k0);
  float* s = b.s;
  char* buffer = reinterpret_cast<char*>(b.shadow);
  ResetState(state);
  ScoreFew<kBf16>(t.rows, r, key, qt, p.head_dim, s, buffer);
  ProbabilitiesFew(t, r, s, state);
  ValuesFew<kBf16>(t.rows, r, s, value, c.value_columns, sum, buffer);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
