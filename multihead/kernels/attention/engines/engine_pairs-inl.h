// Attention on bf16 pairs: one instruction multiplies two neighbours of head_dim, or two keys,
// and adds both products to an f32 sum. Twice the rate of f32 where the CPU has full-width AVX512_BF16 (Zen
// 4, 5).
//
//   S[k][q] = scale · K · Qᵀ     K broadcast in pairs from where it lies, Qᵀ packed as pairs [dim / 2][lane]
//   O[q][:] += P · V             P rounded to bf16 in pairs of keys at absolute even positions, V interleaved
//                                by such pairs once per block
// The scale is applied after the product, softmax and its sums are f32 before the rounding. Everything else
// is as in f32, and so are the promises: same bits for any threads, batch, chunking, and for decode, on CPUs
// that take this way. A sum of two products rounds as the instruction says: other CPUs, which widen, give
// other last bits. There is no backward pass on pairs: it runs on f32.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_PAIRS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_PAIRS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_PAIRS_INL_H_
#endif

#include <cstring>

#include "multihead/kernels/attention/block/pairs_softmax-inl.h"
#include "multihead/kernels/attention/engines/engine_f32-inl.h"
#include "multihead/kernels/simd/dot_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

struct DotArgs {
  const char* a;  // pairs, in bytes from each other:
  int64_t a_row, a_step;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t k;           // pairs
  float scale;         // store, store_max
  float* max;          // store_max: per column
  const float* alpha;  // merge: per row
  const float* beta;
};

HWY_INLINE Vec BroadcastPair(const char* at) {
  float pair;
  std::memcpy(&pair, at, sizeof(pair));
  return hn::Set(F(), pair);
}

template <End kEnd, int MR, int NV>
HWY_NOINLINE void DotTile(const DotArgs& t) {
  const F d;
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) acc[i][j] = hn::Zero(d);
  }
  const char* HWY_RESTRICT a = t.a;
  const float* HWY_RESTRICT b = t.b;
  constexpr bool kScores = kEnd == End::store_max;
  const int64_t a_row = kScores ? t.a_row : 4, a_step = kScores ? 4 : t.a_step, b_stride = t.b_stride;
  for (int64_t k = t.k; k > 0; --k) {
    Vec vb[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) vb[j] = hn::LoadU(d, b + j * kN);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Vec va = BroadcastPair(a + i * a_row);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = DotPairs(acc[i][j], va, vb[j]);
    }
    a += a_step;
    b += b_stride;
  }
  if constexpr (kScores) {
    const Vec scale = hn::Set(d, t.scale);
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      Vec max = t.max ? hn::LoadU(d, t.max + j * kN) : hn::Zero(d);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        acc[i][j] = hn::Mul(acc[i][j], scale);
        max = hn::Max(max, acc[i][j]);
      }
      if (t.max) hn::StoreU(max, d, t.max + j * kN);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    float* HWY_RESTRICT c = t.c + i * t.c_stride;
    if constexpr (kEnd == End::merge) {
      const Vec alpha = hn::Set(d, t.alpha[i]), beta = hn::Set(d, t.beta[i]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        acc[i][j] = hn::MulAdd(acc[i][j], beta, hn::Mul(hn::LoadU(d, c + j * kN), alpha));
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) hn::StoreU(acc[i][j], d, c + j * kN);
  }
}

template <End kEnd, int MR, int NV>
HWY_INLINE void DotRows(DotArgs t, int64_t rows) {
  const auto advance = [&t](int64_t n) HWY_ATTR {
    t.a += n * t.a_row;
    t.c += n * t.c_stride;
    if constexpr (kEnd == End::merge) t.alpha += n, t.beta += n;
  };
  for (; rows >= MR; rows -= MR) {
    if constexpr (kEnd == End::store_max) {  // keys come from L2 or beyond
      for (int i = 0; i < MR; ++i) {
        for (int64_t at = 0; at < 4 * t.k; at += 64) __builtin_prefetch(t.a + (MR + i) * t.a_row + at, 0, 2);
      }
    }
    DotTile<kEnd, MR, NV>(t);
    advance(MR);
  }
  for (; rows >= 4; rows -= 4) {
    DotTile<kEnd, 4, NV>(t);
    advance(4);
  }
  for (; rows >= 1; --rows) {
    DotTile<kEnd, 1, NV>(t);
    advance(1);
  }
}

template <End kEnd>
HWY_INLINE void DotProduct(DotArgs t, int64_t rows, int64_t columns) {
  while (columns > 0) {
    const int64_t now = std::min<int64_t>(columns, 64);
    switch (now / 16) {
      case 4:
        DotRows<kEnd, 6, 4>(t, rows);
        break;
      case 3:
        DotRows<kEnd, 8, 3>(t, rows);
        break;
      case 2:
        DotRows<kEnd, 8, 2>(t, rows);
        break;
      default:
        DotRows<kEnd, 16, 1>(t, rows);
    }
    t.b += now, t.c += now, columns -= now;
    if (t.max) t.max += now;
  }
}

// Pairs of a row: an odd last number has zero beside it.
HWY_INLINE int64_t PairsOf(int64_t dim) { return (dim + 1) / 2; }

// qt[pair][lane] = pairs of the queries.
HWY_INLINE void PackQueryPairs(const ForwardCall& call, const RowTile& t, float* qt) {
  const F d;
  const int64_t dim = call.p->head_dim, pairs = PairsOf(dim);
  const int64_t stride = call.query.strides.token;
  std::fill_n(qt, pairs * kTileRows, 0.0f);
  each_head_run(t, [&](int first, int count) HWY_ATTR {
    const auto* from = static_cast<const uint16_t*>(TileRow(call, call.query, t, first));
    int row = 0;
    for (; row + 16 <= count && dim % 32 == 0; row += 16) {
      for (int64_t c = 0; c < dim; c += 32) {
        Vec x[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          x[i] = Vec{_mm512_castsi512_ps(_mm512_loadu_si512(from + (row + i) * stride + c))};
        }
        TransposeRegisters(x);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) hn::StoreU(x[i], d, qt + (c / 2 + i) * kTileRows + first + row);
      }
    }
    for (; row < count; ++row) {
      for (int64_t c = 0; c < dim; c += 2) {
        const size_t bytes = c + 1 < dim ? 4 : 2;
        std::memcpy(qt + c / 2 * kTileRows + first + row, from + row * stride + c, bytes);
      }
    }
  });
}

// As ScoreProduct, from keys in pairs: strides count floats, that is pairs.
HWY_INLINE void DotScores(const ForwardCall& call, const RowTile& t, const BlockRange& r, const Rows& key,
                          const float* qt, float* s, float* max) {
  DotArgs args{};
  args.a_row = 4 * key.stride, args.a_step = 4, args.b_stride = kTileRows, args.c_stride = kTileRows;
  args.k = PairsOf(call.p->head_dim), args.scale = ScoreScale(call);
  for (NeededPart part{.end = r.k0}; NextNeeded(t, r, part);) {
    args.a = reinterpret_cast<const char*>(Shifted(key, part.k - r.k0).data);
    args.b = qt + part.first * kGroupRows;
    args.c = s + (part.k - r.k0) * kTileRows + part.first * kGroupRows;
    args.max = part.full ? max : nullptr;
    DotProduct<End::store_max>(args, part.end - part.k, (part.last - part.first) * kGroupRows);
  }
}

// Value rows of keys [k0, k1) interleaved by pairs at even positions, `columns` pairs a row; rows outside are
// zero, whatever lies there.
HWY_INLINE void InterleaveValues(const ForwardCall& call, int64_t b, int64_t kv, int k0, int k1, float* to) {
  const int64_t columns = call.value_columns, dim = call.p->value_dim;
  const int64_t stride = call.value.strides.token;
  const auto* base = static_cast<const uint16_t*>(KeyRow(call, call.value, b, kv, 0));
  for (int k = k0 & ~1; k < k1; k += 2, to += columns) {
    for (int64_t c = 0; c < columns; c += 16) {
      const __mmask16 some =
          dim - c >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << (dim - c)) - 1);
      const __mmask16 first = k >= k0 ? some : __mmask16{0}, second = k + 1 < k1 ? some : __mmask16{0};
      const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, base + k * stride + c));
      const __m512i y = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, base + (k + 1) * stride + c));
      _mm512_storeu_si512(to + c, _mm512_or_si512(x, _mm512_slli_epi32(y, 16)));
    }
  }
}

// As BlockValues, from pairs.
HWY_INLINE void DotValues(const RowTile& t, const BlockRange& r, const float* s, const float* value,
                          int64_t columns, bool first, const float* alpha, const float* beta, float* out) {
  DotArgs args{};
  args.a_row = 4, args.a_step = 4 * kTileRows, args.b_stride = columns, args.c_stride = columns;
  const int base = r.k0 & ~1;
  EachRowStep(t, r, columns, [&](int row, int count, KeyRange keys) HWY_ATTR {
    const int from = (keys.begin - base) / 2, to = (keys.end - base + 1) / 2;
    args.a = reinterpret_cast<const char*>(s + from * kTileRows + row);
    args.b = value + from * columns;
    args.k = keys.end > keys.begin ? to - from : 0;
    args.c = out + row * columns;
    args.alpha = alpha + row, args.beta = beta + row;
    first ? DotProduct<End::store>(args, count, columns) : DotProduct<End::merge>(args, count, columns);
  });
}

// As BlockValuesSafe, from pairs.
HWY_INLINE void DotValuesSafe(const RowTile& t, const BlockRange& r, const float* s, const float* shadow,
                              const float* value, int64_t columns, bool first, const float* alpha,
                              const float* beta, float* out) {
  const F d;
  const int odd = r.k0 & 1, keys = r.k1 - r.k0;
  for (int row = 0; row < t.rows; ++row) {
    for (int64_t c = 0; c < columns; c += kN) {
      Vec sum = hn::Zero(d);
      for (int pair = 0; 2 * pair < keys + odd; ++pair) {
        const int k = 2 * pair - odd;
        const auto seen = [&](int i) {
          return i >= 0 && i < keys && r.k0 + i >= t.lo[row] && r.k0 + i < t.hi[row] &&
                 shadow[i * kTileRows + row] != -kInfinity;
        };
        const uint32_t bits = (seen(k) ? 0xFFFFu : 0u) | (seen(k + 1) ? 0xFFFF0000u : 0u);
        if (bits == 0) continue;
        const Vec mask = hn::BitCast(d, hn::Set(I(), static_cast<int32_t>(bits)));
        const Vec v = hn::And(mask, hn::LoadU(d, value + pair * columns + c));
        sum = DotPairs(sum, hn::Set(d, s[pair * kTileRows + row]), v);
      }
      float* o = out + row * columns + c;
      if (!first) {
        sum = hn::MulAdd(sum, hn::Set(d, beta[row]), hn::Mul(hn::LoadU(d, o), hn::Set(d, alpha[row])));
      }
      hn::StoreU(sum, d, o);
    }
  }
}

// Key rows as pairs: in place where they lie on whole pairs, else copied to `buffer`.
HWY_INLINE Rows StageKeyPairs(const ForwardCall& call, int64_t b, int64_t kv, int k0, int k1, float* buffer) {
  const int64_t stride = call.key.strides.token;
  const int64_t dim = call.p->head_dim, pairs = PairsOf(dim);
  const void* from = KeyRow(call, call.key, b, kv, k0);
  if (!call.copy_key) return {static_cast<const float*>(from), stride / 2};
  for (int k = 0; k < k1 - k0; ++k) {
    if (dim % 2 != 0) buffer[k * pairs + pairs - 1] = 0.0f;
    std::memcpy(buffer + k * pairs, At(from, k * stride, true), static_cast<size_t>(2 * dim));
  }
  return {buffer, pairs};
}

class PairsEngine : public EngineDefaults {
 public:
  static constexpr bool kDecodes = true;

  // Pairs of keys' numbers from key `first` on; pairs of values from the even position at or below it.
  struct Block {
    Rows key, value;
    int first = 0;
  };

  static int64_t StageFloats(const ForwardCall& c) { return F32Engine::StageFloats(c); }
  static int64_t QueryFloats(const ForwardCall& c) { return F32Engine::QueryFloats(c); }

  PairsEngine(const ForwardCall& c, float* memory)
      : c_(c), key_(memory), value_(memory + (c.copy_key ? kBlock * c.p->head_dim : 0)) {}

  void PackQueries(QueryTile& w, float* /*buffer*/) const { PackQueryPairs(c_, w.rows, w.query); }

  Block Stage(const AttentionTask& task, int k0, int k1) const {
    InterleaveValues(c_, task.b, task.kv, k0, k1, value_);
    return {StageKeyPairs(c_, task.b, task.kv, k0, k1, key_), {value_, c_.value_columns}, k0};
  }

  HWY_INLINE void Scores(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace&, bool,
                         float* s, float* max) const {
    DotScores(c_, w.rows, r, Shifted(block.key, r.k0 - block.first), w.query, s, max);
  }
  HWY_INLINE void StartChunks(const QueryTile&, const BlockRange&, const Block&, const BlockBuffers&) const {}
  HWY_INLINE void ChunkScores(const QueryTile& w, const BlockRange& r, const Block& block,
                              const BlockPlace& place, float* s) const {
    Scores(w, r, block, place, false, s, nullptr);
  }

  // s <- pairs of keys, in bf16.
  HWY_INLINE void Probabilities(const RowTile& t, const BlockRange& r, float* s, const float* shift,
                                float* sum) const {
    if (c_.p->dropout_p <= 0) {
      return c_.has_terms ? ExpPairBlock<true>(t, r, s, shift, sum)
                          : ExpPairBlock<false>(t, r, s, shift, sum);
    }
    Exponentials(c_, t, r, s, shift, sum);
    PairProbabilities(t, r, r.k0, r.k1, s);
  }

  HWY_INLINE void Values(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace&,
                         bool safe, const BlockBuffers& b, const float* alpha, const float* beta) const {
    const float* value = Shifted(block.value, r.k0 / 2 - block.first / 2).data;
    if (safe) {
      DotValuesSafe(w.rows, r, b.s, b.shadow, value, c_.value_columns, w.first, alpha, beta, w.out);
    } else {
      DotValues(w.rows, r, b.s, value, c_.value_columns, w.first, alpha, beta, w.out);
    }
  }

  using Gradients = F32Engine::Gradients;

 private:
  const ForwardCall& c_;
  float *key_, *value_;
};
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
