#include "multihead/ops/attention/inspect/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;

constexpr Profile kAll[] = {Profile::labml,     Profile::blog,       Profile::lecture, Profile::d2l,
                            Profile::torch_mha, Profile::torch_sdpa, Profile::onnx};

TEST(AttentionProfilesTest, NamesRoundTrip) {
  for (const Profile p : kAll) {
    EXPECT_EQ(parse_profile(profile_name(p)), p);
    const AttentionProfile rules = attention_profile(p, 64);
    EXPECT_EQ(rules.name, profile_name(p));
    EXPECT_FALSE(rules.differences.empty());
    EXPECT_THAT(rules.to_string(), HasSubstr(rules.mask_polarity));
  }
  try {
    parse_profile("tensorflow");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("expected one of labml, blog, lecture, d2l, torch_mha, torch_sdpa, onnx; got "
                          "\"tensorflow\""));
  }
  EXPECT_THROW(attention_profile(Profile::blog), ValueError);
}

// The lecture's masking, as its formula says: excluded scores are replaced by -1e6, then softmax.
TEST(AttentionProfilesTest, LectureReplacesByAFiniteNumber) {
  Rng rng(2);
  const int64_t lens[] = {2, 0, 5};
  const Tensor q = randn({3, 1, 4, 3}, rng), k = randn({3, 1, 5, 3}, rng), v = randn({3, 1, 5, 2}, rng);
  for (const Profile name : {Profile::lecture, Profile::d2l}) {
    AttentionOptions options = attention_profile(name).options;
    options.mask = lengths(Tensor::of<int64_t>({3}, {2, 0, 5}));
    const Tensor y = attention(q, k, v, options);
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t i = 0; i < 4; ++i) {
        double weight[5], sum = 0, top = -1e9;
        for (int64_t j = 0; j < 5; ++j) {
          double s = 0;
          for (int64_t d = 0; d < 3; ++d) s += q.at({b, 0, i, d}) * k.at({b, 0, j, d});
          weight[j] = j < lens[b] ? s / std::sqrt(3.0) : -1e6;
          top = std::max(top, weight[j]);
        }
        for (double& w : weight) sum += (w = std::exp(w - top));
        for (int64_t d = 0; d < 2; ++d) {
          double expected = 0;
          for (int64_t j = 0; j < 5; ++j) expected += weight[j] / sum * v.at({b, 0, j, d});
          EXPECT_NEAR(y.at({b, 0, i, d}), expected, 1e-6);
        }
      }
    }
  }
}

TEST(AttentionProfilesTest, BlogScalesByTheWholeWidth) {
  Rng rng(2);
  const Tensor x = randn({2, 4, 5, 8}, rng);  // 4 heads of 8: embed_dim 32
  const Tensor y = attention(x, x, x, attention_profile(Profile::blog, 32).options);
  EXPECT_EQ(y.to_vector<float>(), attention(x, x, x, {.scale = 1 / std::sqrt(32.0)}).to_vector<float>());
  // One head: the same as everybody's.
  const Tensor one = randn({2, 1, 5, 8}, rng);
  EXPECT_EQ(attention(one, one, one, attention_profile(Profile::blog, 8).options).to_vector<float>(),
            attention(one, one, one).to_vector<float>());
}

TEST(AttentionProfilesTest, EmptyRowsFollowTheSystem) {
  const Tensor x = Tensor::ones({1, 1, 2, 2});
  for (const Profile name : kAll) {
    AttentionOptions options = attention_profile(name, 2).options;
    options.mask = lengths(Tensor::of<int64_t>({1}, {0}));
    const double y = attention(x, x, x, options).at({0, 0, 0, 0});
    if (name == Profile::labml || name == Profile::torch_mha || name == Profile::onnx) {
      EXPECT_TRUE(std::isnan(y)) << profile_name(name);
    } else {
      EXPECT_EQ(y, name == Profile::lecture || name == Profile::d2l ? 1 : 0) << profile_name(name);
    }
  }
}

std::string seen(const Mask& mask, int64_t batch) {
  AttentionCapture capture;
  attention(Tensor::zeros({batch, 2, 2, 1}), Tensor::zeros({batch, 2, 3, 1}), Tensor::zeros({batch, 2, 3, 1}),
            {.mask = mask, .capture = &capture});
  std::string text;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 3; ++j) text += capture.weights.at({b, 1, i, j}) > 0 ? '1' : '.';
      text += ' ';
    }
  }
  return text;
}

TEST(AttentionProfilesTest, MasksKeepTheirSystemsPolarity) {
  const Tensor flags = Tensor::of<bool>({2, 3}, {true, false, false, true, true, false});
  EXPECT_EQ(seen(from_torch_sdpa_mask(flags), 1), "1.. 11. ");
  EXPECT_EQ(seen(from_torch_mha_mask(flags), 1), ".11 ..1 ");
  EXPECT_EQ(seen(from_torch_key_padding_mask(flags), 2), ".11 .11 ..1 ..1 ");
  // labml: [Tq, Tk, B], anything but zero attends.
  const Tensor labml = Tensor::of<float>({2, 3, 2}, {1, 0, 0, -1, 0, 0.001f, 1, 1, 1, 0, 0, 0});
  EXPECT_EQ(seen(from_labml_mask(labml), 2), "1.. 11. .11 1.. ");
  EXPECT_EQ(seen(from_labml_mask(Tensor::of<float>({1, 3, 1}, {0, 2, 0})), 2), ".1. .1. .1. .1. ");
  EXPECT_THROW(from_labml_mask(flags), ShapeError);
  EXPECT_THROW(from_torch_key_padding_mask(Tensor::ones({3}, Dtype::boolean)), ShapeError);
  EXPECT_THROW(from_torch_mha_mask(Tensor::ones({2, 3})), DtypeError);
  EXPECT_THROW(from_torch_mha_mask(Tensor::ones({2, 2, 3}, Dtype::boolean)), ShapeError);
  EXPECT_EQ(seen(from_labml_mask(Tensor::of<float>({1, 3, 1}, {NAN, 0, 0})), 1), "1.. 1.. ");
}

// The systems broadcast where their documentation says so, and nowhere else.
TEST(AttentionProfilesTest, MasksBroadcastOnlyTheAxesTheirSystemDoes) {
  const auto labml = [](const Tensor& m) { return from_labml_mask(m); };
  const auto mha = [](const Tensor& m) { return from_torch_mha_mask(m); };
  const auto padding = [](const Tensor& m) { return from_torch_key_padding_mask(m); };
  const auto sdpa = [](const Tensor& m) { return from_torch_sdpa_mask(m); };
  const struct {
    const char* what;
    Mask (*make)(const Tensor&);
    Shape shape;
    bool fits;
  } cases[] = {
      // The scores are [B=3, H=2, Tq=5, Tk=7].
      {"labml, full", labml, {5, 7, 3}, true},
      {"labml, one query", labml, {1, 7, 3}, true},
      {"labml, one sample", labml, {5, 7, 1}, true},
      {"labml, one key", labml, {5, 1, 3}, false},
      {"labml, one of all", labml, {1, 1, 1}, false},
      {"labml, queries", labml, {4, 7, 3}, false},
      {"labml, samples", labml, {5, 7, 2}, false},
      {"torch mha, full", mha, {5, 7}, true},
      {"torch mha, one query", mha, {1, 7}, false},
      {"torch mha, one key", mha, {5, 1}, false},
      {"torch padding, full", padding, {3, 7}, true},
      {"torch padding, one sample", padding, {1, 7}, false},
      {"torch padding, one key", padding, {3, 1}, false},
      {"torch sdpa, full", sdpa, {3, 2, 5, 7}, true},
      {"torch sdpa, one key", sdpa, {5, 1}, true},
      {"torch sdpa, keys", sdpa, {5, 6}, false},
  };
  const Tensor q = Tensor::zeros({3, 2, 5, 2}), k = Tensor::zeros({3, 2, 7, 2});
  for (const auto& c : cases) {
    const Mask mask = c.make(Tensor::ones(c.shape, Dtype::boolean));
    for (const Mask& used : {mask, mask & causal(), drop(Tensor::zeros({5, 7}, Dtype::boolean)) & mask}) {
      if (c.fits) {
        EXPECT_NO_THROW(attention(q, k, k, {.mask = used})) << c.what;
      } else {
        EXPECT_THROW(attention(q, k, k, {.mask = used}), ShapeError) << c.what;
      }
    }
  }
}

}  // namespace
}  // namespace multihead
