#include "multihead/models/surgery/lens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/nn/points.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead::models {
namespace {

LanguageModel three_layers(bool llama, bool norm_first = true) {
  LanguageModelConfig c;
  c.vocab_size = 23, c.context = 40, c.num_layers = 3, c.num_heads = 4, c.embed_dim = 24, c.init_std = 0.4;
  if (llama) c.positions = Positions::rotary, c.norm = nn::NormKind::rms, c.gated = true, c.num_kv_heads = 2;
  c.norm_first = norm_first;
  Rng rng(8);
  return {c, rng};
}

Tensor one_text(int64_t length) {
  const Tensor x = Tensor::empty({1, length}, Dtype::i32);
  for (int64_t i = 0; i < length; ++i) x.data<int32_t>()[i] = static_cast<int32_t>((5 * i * i + 2) % 23);
  return x;
}

std::vector<float> last_probabilities(const LanguageModel& model, const Tensor& x) {
  const Tensor logits = model(x);
  return softmax(slice(logits, 1, x.size(1) - 1, x.size(1)), -1).to_vector<float>();
}

TEST(LensTest, TheLastLayerSaysWhatTheModelSays) {
  for (const bool llama : {false, true}) {
    const LanguageModel model = three_layers(llama);
    const Tensor x = one_text(37);  // more than one block of rows
    const auto guesses = logit_lens(model, x, 4);
    ASSERT_EQ(guesses.size(), 4U);
    ASSERT_EQ(guesses[0].size(), 37U);
    const auto p = last_probabilities(model, x);
    const std::vector<Guess>& last = guesses.back().back();
    ASSERT_EQ(last.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(last[i].probability, p[static_cast<size_t>(last[i].token)], 1e-6);
      if (i > 0) {
        EXPECT_LE(last[i].probability, last[i - 1].probability);
      }
    }
    EXPECT_EQ(last[0].probability, *std::max_element(p.begin(), p.end()));
    EXPECT_EQ(logit_lens(model, x, 1000).back().back().size(), 23U);
  }
}

// The stream after a post-norm layer is normed: the sum before that norm is none of the model's states.
TEST(LensTest, PostNormModelsEndInTheirLastNorm) {
  LanguageModel model = three_layers(false, false);
  Rng rng(2);
  for (auto& layer : model.layers) fill_normal(layer.norm2.weight, 1, 0.5, rng.next());
  const Tensor x = one_text(7);
  const auto p = last_probabilities(model, x);
  const auto guesses = logit_lens(model, x, 23);
  ASSERT_EQ(guesses.back().back().size(), 23U);
  for (const Guess& guess : guesses.back().back())
    EXPECT_NEAR(guess.probability, p[static_cast<size_t>(guess.token)], 1e-6);
}

TEST(LensTest, AHeadIsWorthWhatItsAbsenceCosts) {
  for (const bool llama : {false, true}) {
    const LanguageModel model = three_layers(llama);
    const Tensor x = one_text(9);
    const auto changes = ablate_heads(model, x, 7);
    ASSERT_EQ(changes.size(), 3U);
    const double whole = std::log(last_probabilities(model, x)[7]);
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t head = 0; head < 4; ++head) {
        nn::Points points;
        points.edit(concat("layers.", layer, ".self_attn.z"),
                    [](const std::string&, const Tensor& z) { return zeros_like(z); }, {.heads = {head}});
        const nn::PointScope scope(points);
        const double without = std::log(last_probabilities(model, x)[7]);
        EXPECT_NEAR(changes[static_cast<size_t>(layer)][static_cast<size_t>(head)], without - whole, 2e-5);
      }
    }
  }
}

TEST(LensTest, SharesOfTokensAddUpToTheDifference) {
  for (const bool llama : {false, true}) {
    const LanguageModel model = three_layers(llama);
    const Tensor x = one_text(6);
    const Shares found = integrated_gradients(model, x, 3, 200);
    const std::vector<double>& shares = found.of_tokens;
    ASSERT_EQ(shares.size(), 6U);
    const Tensor table = model.token_embedding.weight;
    Tensor mean = Tensor::zeros({24});
    for (int64_t i = 0; i < 24; ++i) {
      double sum = 0;
      for (int64_t row = 0; row < 23; ++row) sum += table.data<float>()[row * 24 + i];
      mean.data<float>()[i] = static_cast<float>(sum / 23);
    }
    nn::Points points;
    points.edit("embed", [&](const std::string&, const Tensor& embed) {
      const Tensor same = Tensor::empty(embed.shape());
      for (int64_t t = 0; t < 6; ++t) std::copy_n(mean.data<float>(), 24, same.data<float>() + 24 * t);
      return same;
    });
    const double whole = std::log(last_probabilities(model, x)[3]);
    const nn::PointScope scope(points);
    const double baseline = std::log(last_probabilities(model, x)[3]);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), whole - baseline,
                0.02 * std::abs(whole - baseline) + 1e-3);
    EXPECT_NEAR(found.whole, whole - baseline, 1e-5);
    EXPECT_TRUE(found.add_up());
    Shares coarse = found;
    coarse.of_tokens[2] += 0.2 * std::abs(found.whole) + 0.1;
    EXPECT_FALSE(coarse.add_up());
  }
}

TEST(LensTest, OneSequenceIsExpected) {
  const LanguageModel model = three_layers(false);
  EXPECT_THROW(logit_lens(model, Tensor::zeros({2, 3}, Dtype::i32), 1), ShapeError);
  EXPECT_THROW(ablate_heads(model, Tensor::zeros({3}, Dtype::i32), 1), ShapeError);
  EXPECT_THROW(ablate_heads(model, one_text(4), 23), ValueError);
  EXPECT_THROW(integrated_gradients(model, one_text(4), 1, 0), ValueError);
  LanguageModel packed = nn::clone(model);
  packed.pack_weights(nn::WeightDtype::q8);
  EXPECT_THROW(integrated_gradients(packed, one_text(4), 1), ValueError);
  EXPECT_EQ(ablate_heads(packed, one_text(4), 1).size(), 3U);
}

}  // namespace
}  // namespace multihead::models
