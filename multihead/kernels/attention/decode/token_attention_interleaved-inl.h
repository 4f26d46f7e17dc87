// Attention to tokens whose queries, keys and values are interleaved: element d of head h at d·heads + h.
// With heads in lanes all of it is vertical: nothing is transposed, nothing broadcast. 16 lanes hold 16 /
// heads elements of every head; their chains are added in one fixed tree at the end, so the bits are the same
// on every target with FMA. (Keys transposed in registers, as for other layouts: three times slower for one
// row.)

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_TOKEN_ATTENTION_INTERLEAVED_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_TOKEN_ATTENTION_INTERLEAVED_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_TOKEN_ATTENTION_INTERLEAVED_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_TOKEN_ATTENTION_INTERLEAVED_INL_H_
#endif

#include "multihead/kernels/attention/decode/token_attention.h"
#include "multihead/kernels/reduce/row_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Packs that fit the registers as accumulators.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kPacksAtOnce = 16;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kPacksAtOnce = 4;
#else
inline constexpr int kPacksAtOnce = 1;
#endif
template <int kRows>
inline constexpr int kPacksPerRow =
    kPacksAtOnce / kRows<1 ? 1 : kPacksAtOnce / kRows> 8 ? 8 : kPacksAtOnce / kRows;

// Lane i becomes the sum of the lanes that are i modulo `heads`: halves first, each sum in both halves.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
HWY_INLINE FloatVec AddWithinVector(FloatVec x, int64_t heads) {
  const Floats d;
#if HWY_TARGET == HWY_AVX3
  if (heads <= 8) x = hn::Add(x, hn::ConcatLowerUpper(d, x, x));
  if (heads <= 4) x = hn::Add(x, hn::SwapAdjacentBlocks(x));
#else
  if (heads <= 4) x = hn::Add(x, hn::ConcatLowerUpper(d, x, x));
#endif
  if (heads <= 2) x = hn::Add(x, hn::Shuffle1032(x));
  if (heads <= 1) x = hn::Add(x, hn::Shuffle2301(x));
  return x;
}
HWY_INLINE Pack AddAcrossLanes(Pack x, int64_t heads) {
#if HWY_TARGET == HWY_AVX3
  return {AddWithinVector(x.v, heads)};
#else
  if (heads <= 8) x.low.v = x.high.v = hn::Add(x.low.v, x.high.v);
  return {{AddWithinVector(x.low.v, heads)}, {AddWithinVector(x.high.v, heads)}};
#endif
}
#else
HWY_INLINE Pack AddAcrossLanes(Pack x, int64_t heads) {
  float lanes[kPack];
  Store(x, lanes);
  for (int64_t width = kPack / 2; width >= heads; width /= 2) {
    for (int64_t i = 0; i < kPack; ++i) {
      if ((i & width) == 0) lanes[i] = lanes[i + width] = lanes[i] + lanes[i + width];
    }
  }
  return Load(lanes);
}
#endif

// The biases of a token, repeated to 16 as the heads are.
HWY_INLINE Pack HeadBiases(const TokenAttentionArgs& a, int64_t token) {
  float lanes[kPack];
  for (int64_t i = 0; i < kPack; ++i) lanes[i] = a.bias[token * a.heads + i % a.heads];
  return Load(lanes);
}

// scratch[row][token][16] = scale · query · key for the heads, repeated to 16.
template <int kRows, int kTokens>
HWY_INLINE void InterleavedScores(const TokenAttentionArgs& a, int64_t token) {
  Pack acc[kTokens][kRows];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[t][r] = Set(0);
  }
  const int64_t width = a.heads * a.head_dim;
  for (int64_t c = 0; c < width; c += kPack) {
    Pack query[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) query[r] = Load(a.query + r * a.query_stride + c);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const Pack key = Load(a.tokens[token + t] + a.key_offset + c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[t][r] = MulAdd(query[r], key, acc[t][r]);
    }
  }
  const Pack scale = Set(a.scale);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float* to = a.scratch + (r * a.count + token + t) * kPack;
      const Pack score = Mul(AddAcrossLanes(acc[t][r], a.heads), scale);
      Store(a.bias == nullptr ? score : Add(score, HeadBiases(a, token + t)), to);
    }
  }
}

// Scores become exp(score - largest); returns their sum.
HWY_INLINE Pack InterleavedExponentials(float* scores, int64_t count) {
  Pack most = Load(scores), sum = Set(0);
  for (int64_t t = 1; t < count; ++t) most = Max(most, Load(scores + t * kPack));
  for (int64_t t = 0; t < count; ++t) {
    const Pack e = Map(ExpNonPositiveOp(), Sub(Load(scores + t * kPack), most));
    sum = Add(sum, e);
    Store(e, scores + t * kPack);
  }
  return sum;
}

// out[row][16·kPacks columns] = Σ weight · value / Σ weight.
template <int kRows, int kPacks>
HWY_INLINE void InterleavedValues(const TokenAttentionArgs& a, int64_t column, const Pack* total) {
  Pack acc[kRows][kPacks];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kPacks; ++j) acc[r][j] = Set(0);
  }
  for (int64_t t = 0; t < a.count; ++t) {
    const float* value = a.tokens[t] + a.value_offset + column;
    Pack weight[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) weight[r] = Load(a.scratch + (r * a.count + t) * kPack);
#pragma GCC unroll 8
    for (int j = 0; j < kPacks; ++j) {
      const Pack x = Load(value + j * kPack);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r][j] = MulAdd(weight[r], x, acc[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kPacks; ++j) {
      Store(Div(acc[r][j], total[r]), a.out + r * a.out_stride + column + j * kPack);
    }
  }
}

template <int kRows>
HWY_NOINLINE void AttendInterleavedRows(const TokenAttentionArgs& a) {
  constexpr int kTokens = kPacksPerRow<kRows>;
  int64_t t = 0;
  for (; t + kTokens <= a.count; t += kTokens) InterleavedScores<kRows, kTokens>(a, t);
  for (; t < a.count; ++t) InterleavedScores<kRows, 1>(a, t);
  Pack total[kRows];
  for (int r = 0; r < kRows; ++r)
    total[r] = InterleavedExponentials(a.scratch + r * a.count * kPack, a.count);
  const int64_t width = a.heads * a.head_dim;
  int64_t c = 0;
  for (; c + kTokens * kPack <= width; c += kTokens * kPack) InterleavedValues<kRows, kTokens>(a, c, total);
  for (; c < width; c += kPack) InterleavedValues<kRows, 1>(a, c, total);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
