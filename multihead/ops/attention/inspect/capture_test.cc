#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/elementwise.h"

namespace multihead {
namespace {

class AttentionCaptureTest : public ::testing::TestWithParam<Dtype> {
 protected:
  AttentionCaptureTest() {
    Rng rng(8);
    q = randn({2, 6, 11, 4}, rng, GetParam());
    k = randn({2, 3, 13, 4}, rng, GetParam()), v = randn({2, 3, 13, 5}, rng, GetParam());
    options.mask = causal(Align::start) & lengths(Tensor::of<int64_t>({2}, {13, 0}));
  }
  Tensor q, k, v;
  AttentionOptions options;
};

TEST_P(AttentionCaptureTest, OutputIsTheSameWithAndWithout) {
  const Tensor plain = attention(q, k, v, options);
  AttentionCapture capture{.want_key_mass = true, .want_entropy = true, .top_k = 3};
  options.capture = &capture;
  EXPECT_EQ(attention(q, k, v, options).to_vector<double>(), plain.to_vector<double>());
}

TEST_P(AttentionCaptureTest, WeightsAreThoseOfTheDefinition) {
  AttentionCapture fused, defined;
  options.capture = &fused;
  attention(q, k, v, options);
  options.capture = &defined;
  attention_composed(q, k, v, options);
  ASSERT_EQ(fused.weights.shape(), (Shape{2, 6, 11, 13}));
  const auto a = fused.weights.to_vector<double>(), b = defined.weights.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6);
  for (int64_t i = 0; i < 11; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 13; ++j) {
      sum += fused.weights.at({0, 4, i, j});
      EXPECT_EQ(fused.weights.at({1, 4, i, j}), 0) << "empty row";
      if (j > i) {
        EXPECT_EQ(fused.weights.at({0, 4, i, j}), 0);
      }
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST_P(AttentionCaptureTest, ChosenHeadsAndRows) {
  AttentionCapture all, some{.heads = {5, 1}, .query_rows = {-1, 3, 3}};
  options.capture = &all;
  attention(q, k, v, options);
  options.capture = &some;
  attention(q, k, v, options);
  ASSERT_EQ(some.weights.shape(), (Shape{2, 2, 3, 13}));
  const int64_t heads[] = {5, 1}, rows[] = {10, 3, 3};
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t j = 0; j < 13; ++j) {
        EXPECT_EQ(some.weights.at({0, h, r, j}), all.weights.at({0, heads[h], rows[r], j}));
      }
    }
  }
}

TEST_P(AttentionCaptureTest, Stages) {
  AttentionCapture scores{.stage = CaptureStage::scores}, kept{.stage = CaptureStage::after_dropout}, before;
  Rng rng(3);
  Tensor lse;
  options.lse = &lse;
  options.capture = &scores;
  attention(q, k, v, options);
  options.dropout_p = 0.5f;
  for (AttentionCapture* c : {&kept, &before}) {
    rng = Rng(3);
    options.rng = &rng;
    options.capture = c;
    attention(q, k, v, options);
  }
  int dropped = 0;
  for (int64_t i = 0; i < 11; ++i) {
    for (int64_t j = 0; j < 13; ++j) {
      const double s = scores.weights.at({0, 2, i, j}), p = before.weights.at({0, 2, i, j});
      EXPECT_EQ(scores.weights.at({1, 2, i, j}), -kInf);
      if (j > i) {
        EXPECT_EQ(s, -kInf);
        continue;
      }
      EXPECT_NEAR(std::exp(s - lse.at({0, 2, i})), p, 1e-6);
      const double after = kept.weights.at({0, 2, i, j});
      EXPECT_TRUE(after == 0 || std::abs(after - 2 * p) < 1e-6);
      dropped += after == 0;
    }
  }
  EXPECT_GT(dropped, 15);
  EXPECT_LT(dropped, 51);
}

TEST_P(AttentionCaptureTest, SummariesAreThoseOfTheWeights) {
  AttentionCapture c{.want_key_mass = true, .want_entropy = true, .top_k = 4};
  options.capture = &c;
  attention(q, k, v, options);
  ASSERT_EQ(c.key_mass.shape(), (Shape{2, 6, 13}));
  ASSERT_EQ(c.entropy.shape(), (Shape{2, 6, 11}));
  ASSERT_EQ(c.top_weights.shape(), (Shape{2, 6, 11, 4}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 6; ++h) {
      for (int64_t j = 0; j < 13; ++j) {
        double mass = 0;
        for (int64_t i = 0; i < 11; ++i) mass += c.weights.at({b, h, i, j});
        EXPECT_NEAR(c.key_mass.at({b, h, j}), mass, 1e-5);
      }
      for (int64_t i = 0; i < 11; ++i) {
        double entropy = 0;
        std::vector<std::pair<double, int64_t>> sorted;
        for (int64_t j = 0; j < 13; ++j) {
          const double p = c.weights.at({b, h, i, j});
          if (p > 0) entropy -= p * std::log(p);
          if (p > 0) sorted.emplace_back(-p, j);
        }
        std::sort(sorted.begin(), sorted.end());
        EXPECT_NEAR(c.entropy.at({b, h, i}), entropy, 1e-5);
        for (int64_t r = 0; r < 4; ++r) {
          const bool present = r < static_cast<int64_t>(sorted.size());
          EXPECT_EQ(c.top_keys.at({b, h, i, r}),
                    static_cast<double>(present ? sorted[static_cast<size_t>(r)].second : -1));
          EXPECT_NEAR(c.top_weights.at({b, h, i, r}), present ? -sorted[static_cast<size_t>(r)].first : 0,
                      1e-6);
        }
      }
    }
  }
}

TEST_P(AttentionCaptureTest, SummariesAloneNeedNoWeights) {
  AttentionCapture c{.want_weights = false, .want_entropy = true};
  options.capture = &c;
  attention(q, k, v, options);
  EXPECT_FALSE(c.weights.defined());
  EXPECT_FALSE(c.key_mass.defined());
  EXPECT_TRUE(c.entropy.defined());
}

// However large the scores, which no two ways of computing them round alike.
TEST_P(AttentionCaptureTest, ProbabilitiesSumToOne) {
  for (const double size : {0.0, 1.0, 30.0, 1e3, 7e5, 1e9, 1e30}) {
    const Dtype dtype = GetParam();
    Rng rng(4);
    const Tensor x = Tensor::full({1, 2, 5, 16}, std::sqrt(size / 4), dtype);
    const Tensor noise = randn({1, 2, 70, 16}, rng, dtype);
    for (const bool equal : {true, false}) {
      const Tensor keys = equal ? Tensor::full({1, 2, 70, 16}, std::sqrt(size / 4), dtype)
                                : scale(noise, std::sqrt(size / 4));
      AttentionCapture c{.want_key_mass = true, .want_entropy = true, .top_k = 70};
      attention(x, keys, keys, {.capture = &c});
      const auto near_one = [&](const Tensor& values, double expected, const char* what) {
        for (const double s : values.to_vector<double>())
          EXPECT_NEAR(s, expected, 1e-6 * expected) << what << " " << size;
      };
      near_one(sum(c.weights, -1), 1, "weights");
      near_one(sum(c.top_weights, -1), 1, "top weights");
      near_one(sum(c.key_mass, -1), 5, "key mass");
      if (equal) near_one(c.entropy, std::log(70.0), "entropy");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionCaptureTest, ::testing::Values(Dtype::f32, Dtype::f64));

TEST(AttentionCaptureRaggedTest, RowsOutsideASequenceAreZero) {
  Rng rng(2);
  const Tensor x = randn({9, 2, 4}, rng), cu = Tensor::of<int64_t>({3}, {0, 6, 9});
  AttentionCapture c{.want_key_mass = true, .want_entropy = true, .top_k = 2};
  attention_ragged(x, x, x, cu, cu, {.mask = causal(), .capture = &c});
  ASSERT_EQ(c.weights.shape(), (Shape{2, 2, 6, 6}));
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 6; ++j) {
      EXPECT_EQ(c.weights.at({0, 1, i, j}) > 0, j <= i);
      EXPECT_EQ(c.weights.at({1, 1, i, j}) > 0, j <= i && i < 3);
    }
  }
  EXPECT_EQ(c.entropy.at({1, 0, 5}), 0);
  EXPECT_EQ(c.key_mass.at({1, 0, 4}), 0);
  EXPECT_EQ(c.top_keys.at({1, 0, 4, 0}), -1);
}

TEST(AttentionMergeTest, HalvesMakeTheWhole) {
  Rng rng(2);
  const Tensor q = randn({2, 3, 7, 4}, rng), k = randn({2, 3, 40, 4}, rng), v = randn({2, 3, 40, 5}, rng);
  const auto part = [&](int64_t begin, int64_t end) {
    AttentionPart p;
    const auto keys = [&](const Tensor& x) {
      return x.as_strided({2, 3, end - begin, x.size(3)}, x.strides(), begin * x.strides()[2]);
    };
    p.out = attention(q, keys(k), keys(v), {.lse = &p.lse});
    return p;
  };
  const AttentionPart whole = part(0, 40), merged = merge_attention(part(0, 17), part(17, 40));
  const auto a = merged.out.to_vector<double>(), b = whole.out.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6);
  const auto x = merged.lse.to_vector<double>(), y = whole.lse.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-6);
  const AttentionPart with_nothing = merge_attention(part(0, 0), whole);
  EXPECT_EQ(with_nothing.out.to_vector<float>(), whole.out.to_vector<float>());
  EXPECT_EQ(merge_attention(part(0, 0), part(3, 3)).lse.at({0, 0, 0}), -kInf);
}

}  // namespace
}  // namespace multihead
