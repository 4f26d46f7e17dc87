// Gradients of bf16 on tiles: tiles of queries that are summed together or apart, and gradients kept in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/testing/attention_case.h"

namespace multihead::kernels {
namespace {

using multihead::testing::AttentionCase;
using multihead::testing::AttentionResult;
using multihead::testing::CaseOptions;

// Gradients of type G, from bf16 and output gradients of type G.
template <class G>
struct Bf16Gradients {
  std::vector<BFloat16> query, key, value, out;
  std::vector<G> d_out, d_query, d_key, d_value;
  std::vector<float> lse;

  explicit Bf16Gradients(AttentionCase& c)
      : query(c.query.begin(), c.query.end()),
        key(c.key.begin(), c.key.end()),
        value(c.value.begin(), c.value.end()),
        out(c.d_out.size()),
        d_out(c.d_out.begin(), c.d_out.end()),
        d_query(query.size()),
        d_key(key.size()),
        d_value(value.size()),
        lse(c.poisoned<float>().lse) {
    const AttentionInput in = c.input(query, key, value);
    const AttentionOutput to = c.output(out, lse);
    attention_forward_on_tiles(c.problem, c.terms<float>(), in, to, MatmulPrecision::highest,
                               TileUnit::emulated);
    AttentionGradient g;
    g.out = to.out, g.lse = to.lse, g.d_out = {d_out.data(), c.out_strides};
    g.d_query = {d_query.data(), c.query_strides}, g.d_key = {d_key.data(), c.key_strides};
    g.d_value = {d_value.data(), c.value_strides};
    attention_backward_on_tiles(c.problem, c.terms<float>(), in, g, MatmulPrecision::highest,
                                TileUnit::emulated);
  }
};

void round_to_bf16(AttentionCase& c) {
  for (auto* x : {&c.query, &c.key, &c.value, &c.d_out}) {
    for (float& v : *x) v = static_cast<float>(BFloat16(v));
  }
}

class BackwardTilesTest : public ::testing::Test {
  void SetUp() override {
    if (best_isa() != Isa::avx512) GTEST_SKIP() << "needs AVX-512";
  }
};

// Tiles of 64 queries that see the same keys of a block, other ones, or none.
TEST_F(BackwardTilesTest, TilesThatMeetOtherKeys) {
  CaseOptions o;
  o.batch = 1, o.heads = 2, o.kv_heads = 1, o.queries = 330, o.keys = 300, o.head_dim = 40, o.value_dim = 64;
  AttentionCase c(o);
  round_to_bf16(c);
  std::vector<int64_t> begin, end;
  for (int64_t i = 0; i < o.queries; ++i) {
    const int64_t tile = i / 64;
    begin.push_back(tile == 1 ? 130 : tile == 4 ? 40 + i % 7 : 0);
    end.push_back(tile == 3 ? 100 : 300);
  }
  c.problem.key_begin = begin.data(), c.problem.key_end = end.data();
  const AttentionResult<double> exact = c.reference<double>(true);
  const Bf16Gradients<float> g(c);
  const auto expect_near = [](const std::vector<float>& x, const std::vector<double>& y) {
    const double size = multihead::testing::distance(y, std::vector<double>(y.size(), 0.0)).rms;
    EXPECT_LE(multihead::testing::distance(x, y).rms, 3e-3 * size);
  };
  expect_near(g.d_query, exact.d_query), expect_near(g.d_key, exact.d_key),
      expect_near(g.d_value, exact.d_value);
}

// The same numbers before their last rounding, also where a head is repeated by the specification.
TEST_F(BackwardTilesTest, GradientsInF32) {
  for (const bool infinite : {false, true}) {
    for (const EmptyRow empty_row : {EmptyRow::zero, EmptyRow::uniform}) {
      CaseOptions o;
      o.batch = 1, o.heads = 4, o.kv_heads = 2, o.queries = 70, o.keys = 150, o.head_dim = 32,
      o.value_dim = 24;
      o.causal = o.query_lengths = true, o.empty_row = empty_row;
      AttentionCase c(o);
      round_to_bf16(c);
      if (infinite) c.value[size_t{40} * 24 + 3] = std::numeric_limits<float>::infinity();
      const Bf16Gradients<float> wide(c);
      const Bf16Gradients<BFloat16> narrow(c);
      const auto expect_rounded = [](const std::vector<float>& x, const std::vector<BFloat16>& y,
                                     float most) {
        for (size_t i = 0; i < x.size(); ++i) {
          const float a = static_cast<float>(BFloat16(x[i])), b = static_cast<float>(y[i]);
          if (a == b || (std::isnan(a) && std::isnan(b))) continue;
          ASSERT_LE(std::abs(a - b), most) << i;
        }
      };
      // The weights of empty rows are added, row by row, to what has been rounded.
      const float most = empty_row == EmptyRow::uniform ? 0x1p-5f : 0.0f;
      expect_rounded(wide.d_query, narrow.d_query, 0), expect_rounded(wide.d_key, narrow.d_key, 0);
      expect_rounded(wide.d_value, narrow.d_value, most);
    }
  }
}

// However large the scores of a row, its probabilities add to one in both directions.
TEST_F(BackwardTilesTest, ProbabilitiesOfLargeScoresAddToOne) {
  for (const double logits : {1e3, 1e8, 1e12}) {
    for (const int64_t queries : {70, 3}) {
      CaseOptions o;
      o.batch = 1, o.heads = o.kv_heads = 1, o.queries = queries, o.keys = 300, o.head_dim = o.value_dim = 32;
      o.logits = logits;
      AttentionCase c(o);
      for (int64_t k = 0; k < o.keys; ++k) c.value[static_cast<size_t>(k * o.value_dim)] = 1;
      round_to_bf16(c);
      const Bf16Gradients<float> g(c);
      for (int64_t i = 0; i < queries; ++i)
        ASSERT_NEAR(static_cast<float>(g.out[static_cast<size_t>(i * o.value_dim)]), 1, 0.01) << logits;
      for (int64_t column = 0; column < o.value_dim; ++column) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < o.keys; ++k) sum += g.d_value[static_cast<size_t>(k * o.value_dim + column)];
        for (int64_t i = 0; i < queries; ++i) {
          const double d = g.d_out[static_cast<size_t>(i * o.value_dim + column)];
          sum -= d, size += std::abs(d);
        }
        ASSERT_LE(std::abs(sum), 0.01 * size) << logits << ", column " << column;
      }
    }
  }
}

// Lanes that hold no query keep what an earlier call left in the memory: NaN there must not reach a sum.
TEST_F(BackwardTilesTest, WhatAnEarlierCallLeft) {
  set_num_threads(1);
  CaseOptions o;
  o.batch = 1, o.heads = 2, o.kv_heads = 2, o.queries = 70, o.keys = 259, o.head_dim = 31, o.value_dim = 80;
  o.bias = multihead::testing::Bias::full;
  CaseOptions few = o;
  few.queries = 1;
  AttentionCase c(few), before(o);
  round_to_bf16(c);
  std::fill(before.bias.begin(), before.bias.end(), std::numeric_limits<float>::quiet_NaN());
  const Bf16Gradients<float> first(c), other(before), again(c);
  EXPECT_EQ(first.d_query, again.d_query);
  EXPECT_EQ(first.d_key, again.d_key);
  EXPECT_EQ(first.d_value, again.d_value);
}

}  // namespace
}  // namespace multihead::kernels
