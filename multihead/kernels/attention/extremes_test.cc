// Accuracy where numbers are extreme: logits up to 1e4 and more, biases of -inf, NaN in excluded keys. The
// measuring stick is the naive f32 loop's own error: 1.0 of it forward, 1.5 for gradients.
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/testing/attention_case.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

using testing::AttentionCase;
using testing::Bias;
using testing::CaseOptions;
using testing::Keep;

// Errors of one output over many cases as a geometric mean of ratios: in a single case with sharp weights two
// keys that are nearly equal decide, and luck with them.
struct Errors {
  double logs = 0;
  int cases = 0;

  // Beside the naive loop's error counts a unit in the last place of the largest value, times that of the
  // log-sum-exp: weights of the backward are exp(score - lse), and the fused path rounds lse once more than
  // the naive one, which shows where one key has all the weight and the naive difference is exactly 0.
  template <class A, class B, class C>
  void add(const char* what, const A& fused, const B& naive, const C& exact, double lse = 0) {
    if (exact.empty()) return;
    const auto a = testing::distance(fused, exact), b = testing::distance(naive, exact);
    const double floor = 1.2e-7 * std::max(1.0, testing::largest(exact)) * (1 + lse / 8);
    EXPECT_LE(a.rms, 12 * b.rms + 8 * floor) << what;
    logs += std::log(std::max(a.rms, floor / 16) / (b.rms + floor));
    ++cases;
  }
  double ratio() const { return std::exp(logs / std::max(cases, 1)); }
};

CaseOptions options_of(uint32_t seed, double logits) {
  std::mt19937 r(seed);
  const auto pick = [&](std::initializer_list<int64_t> list) { return list.begin()[r() % list.size()]; };
  CaseOptions o;
  o.seed = seed;
  o.batch = 2, o.kv_heads = pick({1, 2}), o.heads = o.kv_heads * pick({1, 3});
  o.queries = pick({1, 17, 65, 130}), o.keys = pick({33, 257, 300, 515});
  o.head_dim = pick({16, 32, 64, 80}), o.value_dim = pick({24, 32, 64});
  o.causal = r() % 2 == 0, o.alibi = r() % 3 == 0, o.softcap = r() % 4 == 0 ? 50 : 0;
  o.key_lengths = r() % 3 == 0;
  o.logits = logits;
  o.bias = r() % 2 == 0 ? Bias::per_head : Bias::none;
  return o;
}

class AttentionExtremesTest : public ::testing::TestWithParam<double> {};

TEST_P(AttentionExtremesTest, LargeLogitsInfiniteBiasesAndPlantedNan) {
  Errors out, lse, d_query, d_key, d_value, d_bias;
  for (uint32_t seed = 1; seed <= 40 && !HasFailure(); seed += testing::kCaseStep) {
    const CaseOptions o = options_of(seed, GetParam());
    SCOPED_TRACE(concat("seed ", seed, " Tq ", o.queries, " Tk ", o.keys, " D ", o.head_dim));
    AttentionCase clean(o), dirty(o);
    const bool plant = seed % 2 == 0;  // keys after `last` are excluded for every query, and poisoned
    const int64_t last = o.keys - 9;
    std::vector<int64_t> valid(static_cast<size_t>(o.batch), last);
    for (AttentionCase* c : {&clean, &dirty}) {
      for (size_t i = 0; i < c->bias.size(); i += 3) c->bias[i] = -std::numeric_limits<float>::infinity();
      if (plant) c->problem.key_lengths = valid.data();
    }
    for (int64_t row = 0; plant && row < o.batch * o.kv_heads; ++row) {
      for (int64_t j = last; j < o.keys; ++j) {
        dirty.key[static_cast<size_t>((row * o.keys + j) * o.head_dim + 2)] = std::nanf("");
        dirty.value[static_cast<size_t>((row * o.keys + j) * o.value_dim + 1)] = std::nanf("");
      }
    }
    const auto exact = clean.reference<double>(true);
    const auto naive = clean.reference<float>(true), fused = dirty.fused(true);
    const double size = testing::largest(exact.lse);
    out.add("out", fused.out, naive.out, exact.out);
    lse.add("lse", fused.lse, naive.lse, exact.lse);
    d_query.add("d_query", fused.d_query, naive.d_query, exact.d_query, size);
    d_key.add("d_key", fused.d_key, naive.d_key, exact.d_key, size);
    d_value.add("d_value", fused.d_value, naive.d_value, exact.d_value, size);
    d_bias.add("d_bias", fused.d_bias, naive.d_bias, exact.d_bias, size);
  }
  EXPECT_LE(out.ratio(), 1.0);
  EXPECT_LE(lse.ratio(), 1.0);
  EXPECT_LE(d_query.ratio(), 1.5);
  EXPECT_LE(d_key.ratio(), 1.5);
  EXPECT_LE(d_value.ratio(), 1.5);
  EXPECT_LE(d_bias.ratio(), 1.5);
}

INSTANTIATE_TEST_SUITE_P(StandardDeviationOfScores, AttentionExtremesTest,
                         ::testing::Values(1, 30, 100, 1000, 3000));

// The output of a query whose second key has `score` below the first one's 0; values are 1 and 2^110.
float distant_key_output(float score, bool by_bias) {
  CaseOptions o;
  o.batch = o.heads = o.kv_heads = 1, o.queries = 67, o.keys = 2;
  o.bias = by_bias ? Bias::full : Bias::none;
  AttentionCase c(o);
  std::fill(c.query.begin(), c.query.end(), 1.0f);
  std::fill(c.key.begin(), c.key.end(), 0.0f);
  std::fill(c.value.begin(), c.value.end(), 1.0f);
  for (auto i = c.value.size() / 2; i < c.value.size(); ++i) c.value[i] = std::ldexp(1.0f, 110);
  if (by_bias) {
    for (size_t i = 0; i < c.bias.size(); ++i) c.bias[i] = i % 2 == 0 ? 0.0f : score;
  } else {
    c.key[c.key.size() / 2] = score / static_cast<float>(c.problem.scale);
  }
  return c.fused(false).out[0];
}

// Kernels count weights below 2^-100 of a block's largest as zero, alike on all instruction sets with
// vectors.
TEST(AttentionUnderflowTest, WeightsEndAboveTheDenormals) {
  const kernels::Isa before = kernels::current_isa();
  for (const kernels::Isa isa : {kernels::Isa::avx2, kernels::Isa::avx512}) {
    if (kernels::best_isa() < isa) continue;
    kernels::set_isa(isa);
    for (const bool by_bias : {false, true}) {
      EXPECT_EQ(distant_key_output(-101 * 0.6931472f, by_bias), 1.0f);
      EXPECT_NEAR(distant_key_output(-99 * 0.6931472f, by_bias), 1 + 2048, 0.1);
      EXPECT_EQ(distant_key_output(-std::numeric_limits<float>::infinity(), by_bias), 1.0f);
      EXPECT_EQ(distant_key_output(-std::numeric_limits<float>::max() / 4, by_bias), 1.0f);
    }
  }
  kernels::set_isa(before);
}

}  // namespace
}  // namespace multihead
