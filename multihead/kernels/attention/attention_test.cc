#include "multihead/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/testing-inl.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

using testing::AttentionCase;
using testing::AttentionResult;
using testing::Bias;
using testing::CaseOptions;
using testing::Keep;
using testing::Layout;

// Root-mean-square error against f64 at most `factor` times that of the naive f32 loop, plus one unit in the
// last place of the largest value (or of the inputs, 1). With few values, and for the maximum, luck decides;
// these get 3 and 5 times as much.
template <class A, class B, class C>
void expect_as_good(const char* what, const A& fused, const B& naive, const C& exact, double factor,
                    double scale = 1) {
  const auto ours = testing::distance(fused, exact), theirs = testing::distance(naive, exact);
  const double floor = 6e-8 * std::max(scale, testing::largest(exact)), luck = exact.size() < 256 ? 3 : 1;
  EXPECT_LE(ours.max, 5 * factor * theirs.max + 12 * floor) << what;
  EXPECT_LE(ours.rms, luck * factor * theirs.rms + floor) << what;
}

void expect_forward(const CaseOptions& options) {
  AttentionCase c(options);
  const auto exact = c.reference<double>(false);
  const auto naive = c.reference<float>(false);
  const auto fused = c.fused(false);
  expect_as_good("out", fused.out, naive.out, exact.out, 1.0);
  expect_as_good("lse", fused.lse, naive.lse, exact.lse, 1.0);
}

// The naive loop subtracts Σ p·dp, the fused one ⟨out, d_out⟩: where a gradient cancels to nothing (one key,
// say) the former is exact and the latter leaves a rounding of ⟨out, d_out⟩, so that is the scale of the
// allowance.
void expect_backward(const CaseOptions& o) {
  AttentionCase c(o);
  const auto exact = c.reference<double>(true);
  const auto naive = c.reference<float>(true);
  const auto fused = c.fused(true);
  const double delta = (o.keys < 4 ? 16 : 4) * std::sqrt(static_cast<double>(o.value_dim));
  const double rows = static_cast<double>(o.batch * o.queries);
  expect_as_good("d_query", fused.d_query, naive.d_query, exact.d_query, 1.5, delta);
  expect_as_good(
      "d_key", fused.d_key, naive.d_key, exact.d_key, 1.5,
      delta * std::sqrt(1 + rows * static_cast<double>(o.heads) / static_cast<double>(o.keys + 1)));
  expect_as_good("d_value", fused.d_value, naive.d_value, exact.d_value, 1.5);
  expect_as_good("d_bias", fused.d_bias, naive.d_bias, exact.d_bias, 1.5,
                 delta * std::sqrt(o.bias == Bias::key_only ? rows * static_cast<double>(o.heads) : 2.0));
  expect_as_good("d_relative_bias", fused.d_relative_bias, naive.d_relative_bias, exact.d_relative_bias, 1.5,
                 delta * std::sqrt(rows));
  expect_as_good("d_alibi_slopes", fused.d_alibi_slopes, naive.d_alibi_slopes, exact.d_alibi_slopes, 1.5,
                 delta * std::sqrt(rows) * static_cast<double>(o.queries + o.keys));
  expect_as_good("d_relative_key", fused.d_relative_key, naive.d_relative_key, exact.d_relative_key, 1.5,
                 delta * std::sqrt(rows));
}

// A random point of {masks} x {terms} x {heads} x {lengths around tile edges}.
CaseOptions random_options(uint32_t seed) {
  std::mt19937 r(seed);
  const auto pick = [&](std::initializer_list<int64_t> list) { return list.begin()[r() % list.size()]; };
  const auto chance = [&](int percent) { return static_cast<int>(r() % 100) < percent; };
  CaseOptions o;
  o.seed = seed;
  o.batch = pick({1, 2, 3});
  o.kv_heads = pick({1, 2, 3});
  o.heads = o.kv_heads * pick({1, 1, 2, 5});
  o.queries = pick({1, 2, 13, 15, 16, 17, 31, 47, 63, 64, 65, 67, 127, 130, 259});
  o.keys = pick({1, 3, 15, 16, 17, 63, 64, 65, 97, 255, 256, 257, 300, 515, 0});
  o.head_dim = pick({1, 3, 8, 16, 31, 32, 40, 64, 65, 80, 128});
  o.value_dim = chance(60) ? o.head_dim : pick({1, 7, 16, 24, 33, 64, 96});
  o.layout = chance(50) ? Layout::bthd : Layout::bhtd;
  o.causal = chance(40);
  if (chance(25)) o.diagonal = static_cast<int64_t>(r() % 40) - 20;
  o.diagonals = chance(20);
  if (chance(25)) o.window_left = static_cast<int64_t>(r() % 70);
  if (chance(15)) o.window_right = static_cast<int64_t>(r() % 70);
  o.key_lengths = chance(25), o.query_lengths = chance(15), o.intervals = chance(15), o.ragged = chance(20);
  if (chance(30)) o.keep = static_cast<Keep>(1 + r() % 3);
  o.mask_function = chance(12);
  if (chance(30)) o.bias = static_cast<Bias>(1 + r() % 3);
  o.relative_bias = chance(15), o.alibi = chance(20), o.score_function = chance(15);
  if (chance(20)) o.softcap = 5;
  if (chance(25)) o.dropout = 0.25;
  if (chance(10)) o.empty_row = kernels::EmptyRow::uniform;
  o.lse_gradient = chance(40);
  return o;
}

TEST(AttentionTest, ForwardIsAsAccurateAsTheNaiveLoop) {
  for (uint32_t seed = 1; seed <= 250; seed += multihead::testing::kCaseStep) {
    const CaseOptions o = random_options(seed);
    SCOPED_TRACE(describe(o));
    expect_forward(o);
    if (::testing::Test::HasFailure()) break;
  }
}

// Tables shorter than a vector, than a band and than a block, and longer than everything.
CaseOptions random_relative(uint32_t seed) {
  CaseOptions o = random_options(seed);
  const int64_t spans[] = {1, 2, 17, 33, 150, 400, 1031};
  o.relative_key = spans[seed % 7], o.relative_key_shared = seed % 5 == 0;
  return o;
}

TEST(AttentionTest, RelativeKeysAreAsAccurateAsTheNaiveLoop) {
  for (uint32_t seed = 1; seed <= 150; seed += multihead::testing::kCaseStep) {
    const CaseOptions o = random_relative(seed);
    SCOPED_TRACE(describe(o));
    expect_forward(o);
    if (seed % 2 == 0) expect_backward(o);
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(AttentionTest, BackwardIsAsAccurateAsTheNaiveLoop) {
  for (uint32_t seed = 1; seed <= 150; seed += multihead::testing::kCaseStep) {
    const CaseOptions o = random_options(seed);
    SCOPED_TRACE(describe(o));
    expect_backward(o);
    if (::testing::Test::HasFailure()) break;
  }
}

double weighted_lse(AttentionCase& c) {
  const auto r = c.reference<double>(false);
  double sum = 0;
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isfinite(r.lse[i])) sum += static_cast<double>(c.d_lse[i]) * r.lse[i];
  }
  return sum;
}

// Masked rows, dropout (which lse does not know), grouped heads, terms; lse is all that is used.
TEST(AttentionTest, GradientOfLseIsItsSlope) {
  CaseOptions o;
  o.heads = 4, o.queries = 5, o.keys = 7, o.head_dim = 3, o.lse_gradient = true;
  o.causal = true, o.diagonal = -1, o.key_lengths = true, o.alibi = true, o.softcap = 5, o.dropout = 0.25;
  o.score_function = true, o.bias = Bias::per_head;
  AttentionCase c(o);
  std::fill(c.d_out.begin(), c.d_out.end(), 0.0f);
  const auto r = c.reference<double>(true);
  const auto expect_slope = [&](std::vector<float>& x, const std::vector<double>& gradient) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float at = x[i], h = 1e-3f;
      const float up = at + h, down = at - h;
      x[i] = up;
      const double above = weighted_lse(c);
      x[i] = down;
      const double below = weighted_lse(c);
      x[i] = at;
      EXPECT_NEAR(gradient[i], (above - below) / (double{up} - double{down}), 1e-5) << i;
    }
  };
  expect_slope(c.query, r.d_query);
  expect_slope(c.key, r.d_key);
  expect_slope(c.bias, r.d_bias);
  for (double d : r.d_value) EXPECT_EQ(d, 0);
}

// Gradients of lse = -inf go nowhere, not even NaN.
TEST(AttentionTest, EmptyRowsTakeNoGradientOfLse) {
  CaseOptions o;
  o.queries = 67, o.keys = 97, o.causal = true, o.diagonal = -31, o.lse_gradient = true;
  AttentionCase c(o);
  const auto before = c.fused(true);
  const auto specified = c.reference<float>(true);
  ASSERT_TRUE(std::isinf(before.lse[0]));
  for (size_t i = 0; i < c.d_lse.size(); ++i) {
    if (std::isinf(before.lse[i])) c.d_lse[i] = std::nanf("");
  }
  EXPECT_EQ(c.fused(true).d_query, before.d_query);
  EXPECT_EQ(c.fused(true).d_key, before.d_key);
  EXPECT_EQ(c.reference<float>(true).d_key, specified.d_key);
}

// Each shape by itself. A forward may add to the naive loop's error one rounding of its output (2^-25 of it,
// root mean square); gradients get the factor of 1.5 alone. Long rows are better than the naive loop's.
TEST(AttentionTest, SlowNoShapeIsLessAccurateThanTheNaiveLoop) {
  const auto rms = [](const std::vector<double>& x) {
    return testing::distance(x, std::vector<double>(x.size(), 0.0)).rms;
  };
  for (int64_t tokens : {17, 67, 131, 515, 1031}) {
    for (int64_t dim : {8, 32, 64, 128}) {
      for (int kind = 0; kind < 3; ++kind) {
        CaseOptions o;
        o.batch = 1, o.heads = o.kv_heads = tokens < 100 ? 12 : tokens < 200 ? 4 : 1;
        o.queries = o.keys = tokens, o.head_dim = o.value_dim = dim;
        o.causal = kind == 1, o.bias = kind == 2 ? Bias::per_head : Bias::none;
        SCOPED_TRACE(describe(o));
        const bool is_long = tokens > 500;
        AttentionCase c(o);
        const auto exact = c.reference<double>(true);
        const auto naive = c.reference<float>(true), fused = c.fused(true);
        EXPECT_LE(testing::distance(fused.out, exact.out).rms,
                  is_long ? 0.85 * testing::distance(naive.out, exact.out).rms
                          : testing::distance(naive.out, exact.out).rms + 0x1p-25 * rms(exact.out));
        const auto gradient = [&](const char* what, const auto& ours, const auto& theirs, const auto& truth) {
          EXPECT_LE(testing::distance(ours, truth).rms,
                    (is_long ? 0.85 : 1.5) * testing::distance(theirs, truth).rms)
              << what;
        };
        gradient("d_query", fused.d_query, naive.d_query, exact.d_query);
        gradient("d_key", fused.d_key, naive.d_key, exact.d_key);
        gradient("d_value", fused.d_value, naive.d_value, exact.d_value);
      }
    }
  }
}

}  // namespace
}  // namespace multihead
