// Keys in lanes: lanes of them are transposed in registers, so that one broadcast of a query's element serves
// them all; rows that share the tokens share the transpose. A hypothesis reads the tokens that it has in
// common with others where they were written first: nothing is copied when a beam is reordered.
#include "multihead/kernels/attention/decode/token_attention.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/decode/token_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/attention/decode/token_attention_interleaved-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"
#include "multihead/kernels/simd/math-inl.h"

#ifndef MULTIHEAD_KERNELS_TOKEN_ATTENTION_ONCE
#define MULTIHEAD_KERNELS_TOKEN_ATTENTION_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kMostRows = 4;    // at once
constexpr int64_t kMostLanes = 16;  // of any target; the scores' rows are padded to them

int64_t padded_count(int64_t count) { return (count + kMostLanes - 1) / kMostLanes * kMostLanes; }

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// scratch[row][token] = scale · query · key of head `head`; padding is -inf.
template <int kRows>
HWY_INLINE void TokenScores(const TokenAttentionArgs& a, int64_t head, int64_t stride) {
  const TileFloats d;
  const int64_t at = head * a.head_dim;
  const TileVec never = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t t = 0; t < stride; t += kLanes) {
    TileVec acc[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
    for (int64_t c = 0; c < a.head_dim && t < a.count; c += kLanes) {
      const int64_t columns = std::min(kLanes, a.head_dim - c);
      const auto mask = hn::FirstN(d, static_cast<size_t>(columns));
      TileVec square[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* key = a.tokens[std::min(t + i, a.count - 1)] + a.key_offset + at + c;
        square[i] = columns == kLanes ? hn::LoadU(d, key) : LoadLanes(mask, d, key);
      }
      TransposeSquare(square);
      const float* query = a.query + at + c;
      if (columns == kLanes) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < kLanes; ++j) {
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            acc[r] = hn::MulAdd(hn::Set(d, query[r * a.query_stride + j]), square[j], acc[r]);
          }
        }
      } else {
        for (int64_t j = 0; j < columns; ++j) {
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            acc[r] = hn::MulAdd(hn::Set(d, query[r * a.query_stride + j]), square[j], acc[r]);
          }
        }
      }
    }
    const int64_t left = std::clamp<int64_t>(a.count - t, 0, kLanes);
    const auto exists = hn::FirstN(d, static_cast<size_t>(left));
    HWY_ALIGN float biases[kMostLanes] = {};
    for (int64_t i = 0; a.bias != nullptr && i < left; ++i) biases[i] = a.bias[(t + i) * a.heads + head];
    const TileVec bias = hn::Load(d, biases);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const TileVec score = hn::Add(hn::Mul(acc[r], hn::Set(d, a.scale)), bias);
      hn::StoreU(hn::IfThenElse(exists, score, never), d, a.scratch + r * stride + t);
    }
  }
}

// Scores become exp(score - largest).
HWY_INLINE void Exponentials(float* scores, int64_t stride) {
  const TileFloats d;
  TileVec most = hn::LoadU(d, scores);
  for (int64_t t = kLanes; t < stride; t += kLanes) most = hn::Max(most, hn::LoadU(d, scores + t));
  most = hn::MaxOfLanes(d, most);
  for (int64_t t = 0; t < stride; t += kLanes) {
    hn::StoreU(ExpNonPositive(d, hn::Sub(hn::LoadU(d, scores + t), most)), d, scores + t);
  }
}

// out[row][NV·lanes columns] = Σ weight · value / Σ weight.
template <int kRows, int NV>
HWY_INLINE void TokenValues(const TokenAttentionArgs& a, int64_t column, int64_t stride) {
  const TileFloats d;
  const int64_t lanes = std::min<int64_t>(kLanes, a.head_dim - column % a.head_dim);
  const auto mask = hn::FirstN(d, static_cast<size_t>(lanes));
  const bool whole = NV > 1 || lanes == kLanes;
  TileVec acc[kRows][NV], total[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    total[r] = hn::Zero(d);
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
  }
  for (int64_t t = 0; t < a.count; ++t) {
    const float* value = a.tokens[t] + a.value_offset + column;
    TileVec x[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      x[v] = whole ? hn::LoadU(d, value + v * kLanes) : LoadLanes(mask, d, value);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const TileVec weight = hn::Set(d, a.scratch[r * stride + t]);
      total[r] = hn::Add(total[r], weight);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(weight, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* out = a.out + r * a.out_stride + column;
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      const TileVec y = hn::Div(acc[r][v], total[r]);
      whole ? hn::StoreU(y, d, out + v * kLanes) : StoreLanes(y, mask, d, out);
    }
  }
}

template <int kRows>
HWY_NOINLINE void AttendRows(const TokenAttentionArgs& a) {
  const int64_t stride = padded_count(a.count);
  for (int64_t head = 0; head < a.heads; ++head) {
    TokenScores<kRows>(a, head, stride);
    for (int r = 0; r < kRows; ++r) Exponentials(a.scratch + r * stride, stride);
    int64_t c = 0;
    for (; c + 2 * kLanes <= a.head_dim; c += 2 * kLanes) {
      TokenValues<kRows, 2>(a, head * a.head_dim + c, stride);
    }
    for (; c < a.head_dim; c += kLanes) TokenValues<kRows, 1>(a, head * a.head_dim + c, stride);
  }
}

template <int kRows>
void Attend(const TokenAttentionArgs& a) {
  a.interleaved ? AttendInterleavedRows<kRows>(a) : AttendRows<kRows>(a);
}

void TokenAttention(const TokenAttentionArgs& args) {
  TokenAttentionArgs a = args;
  while (a.rows > 0) {
    // Plain loops gain nothing from rows side by side.
    const int64_t rows = std::min<int64_t>(a.rows, HWY_TARGET == HWY_SCALAR ? 1 : kMostRows);
    switch (rows) {
#if HWY_TARGET != HWY_SCALAR
      case 4:
        Attend<4>(a);
        break;
      case 3:
        Attend<3>(a);
        break;
      case 2:
        Attend<2>(a);
        break;
#endif
      default:
        Attend<1>(a);
    }
    a.rows -= rows;
    a.query += rows * a.query_stride;
    a.out += rows * a.out_stride;
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(TokenAttention);

bool token_attention_interleaves(int64_t heads, int64_t head_dim) {
  return heads > 0 && kMostLanes % heads == 0 && heads * head_dim % kMostLanes == 0;
}

int64_t token_attention_scratch(int64_t count, bool interleaved) {
  return kMostRows * (interleaved ? kMostLanes * count : padded_count(count));
}

void token_attention(const TokenAttentionArgs& args) {
  if (args.count > 0) return HWY_DYNAMIC_DISPATCH(TokenAttention)(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    std::fill_n(args.out + r * args.out_stride, args.heads * args.head_dim, 0.0f);
  }
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
