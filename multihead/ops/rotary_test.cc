#include "multihead/ops/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"

namespace multihead {
namespace {

using Kind = RotaryScaling::Kind;

constexpr int64_t kRotatedDim = 64;

// The values are those of transformers: models/files/hugging_face_test.cc.
TEST(RotaryScalingTest, LinearIsAnotherUnitOfLength) {
  const auto plain = rotary_frequencies(kRotatedDim),
             scaled = rotary_frequencies(kRotatedDim, 10000, {Kind::linear, 4});
  for (size_t k = 0; k < plain.size(); ++k) EXPECT_DOUBLE_EQ(scaled[k], plain[k] / 4);
  const RotaryTable far = rotary_table(1, {28}, scaled), near = rotary_table(1, {7}, plain);
  EXPECT_EQ(far.cos.to_vector<float>(), near.cos.to_vector<float>());
  EXPECT_EQ(far.sin.to_vector<float>(), near.sin.to_vector<float>());
}

// Waves shorter than original / high are kept, those longer than original / low divided, nothing jumps.
TEST(RotaryScalingTest, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RotaryScaling scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 512};
  const auto plain = rotary_frequencies(kRotatedDim),
             scaled = rotary_frequencies(kRotatedDim, 10000, scaling);
  int kept = 0, blended = 0, divided = 0;
  for (size_t k = 0; k < plain.size(); ++k) {
    const double wave = 2 * std::numbers::pi / plain[k];
    if (wave < 512.0 / 4) {
      EXPECT_DOUBLE_EQ(scaled[k], plain[k]);
      ++kept;
    } else if (wave > 512.0) {
      EXPECT_DOUBLE_EQ(scaled[k], plain[k] / 8);
      ++divided;
    } else {
      EXPECT_LT(scaled[k], plain[k]);
      EXPECT_GT(scaled[k], plain[k] / 8);
      ++blended;
    }
    if (k > 0) {
      EXPECT_LT(scaled[k], scaled[k - 1]);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(divided, 0);
}

TEST(RotaryScalingTest, YarnMovesFromKeptToDividedAndScalesTheTable) {
  const RotaryScaling scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 2048};
  const auto plain = rotary_frequencies(kRotatedDim),
             scaled = rotary_frequencies(kRotatedDim, 10000, scaling);
  EXPECT_DOUBLE_EQ(scaled.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 4);
  for (size_t k = 1; k < plain.size(); ++k) EXPECT_LE(scaled[k] / plain[k], scaled[k - 1] / plain[k - 1]);
  EXPECT_DOUBLE_EQ(rotary_amplitude(scaling), 0.1 * std::log(4.0) + 1);
  const RotaryTable table = rotary_table(1, {0}, scaled, RotaryLayout::halves, rotary_amplitude(scaling));
  EXPECT_FLOAT_EQ(table.cos.data<float>()[0], static_cast<float>(rotary_amplitude(scaling)));
  EXPECT_EQ(table.sin.data<float>()[0], 0);
  EXPECT_EQ(rotary_frequencies(kRotatedDim, 10000, {Kind::yarn, 1, 2048}), plain);
  EXPECT_EQ(rotary_amplitude({Kind::yarn, 1, 2048}), 1);
  EXPECT_EQ(rotary_amplitude({.kind = Kind::llama3, .factor = 8}), 1);
}

TEST(RotaryScalingTest, WhatMakesNoSenseIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const RotaryScaling& bad : std::initializer_list<RotaryScaling>{
           {.factor = 4},
           {.kind = Kind::linear, .factor = 0.5},
           {.kind = Kind::linear, .factor = nan},
           {.kind = Kind::linear, .factor = std::numeric_limits<double>::infinity()},
           {.kind = Kind::llama3, .factor = 2},
           {.kind = Kind::llama3, .factor = 2, .original_context = 8, .low_freq_factor = 0},
           {.kind = Kind::llama3, .factor = 2, .original_context = 8, .high_freq_factor = 1},
           {.kind = Kind::yarn, .factor = 2, .original_context = -8},
           {.kind = Kind::yarn, .factor = 2, .original_context = 8, .beta_slow = 32},
           {.kind = Kind::yarn, .factor = 2, .original_context = 8, .attention_factor = nan}}) {
    EXPECT_THROW(rotary_frequencies(kRotatedDim, 10000, bad), ValueError);
  }
  EXPECT_THROW(rotary_frequencies(kRotatedDim, 1, {Kind::yarn, 2, 8}), ValueError);
}

// Pairs of every remainder of a vector, heads that stay: the bits of plain loops.
TEST(RotaryTest, HalvesHaveTheBitsOfPlainLoops) {
  for (const int64_t pairs : {1, 5, 16, 23, 48}) {
    const int64_t tokens = 3, heads = 4, rotated = 3, width = 2 * pairs + 2;
    Tensor x = Tensor::empty({1, tokens, heads, width});
    fill_normal(x, 0, 1, RandomStream{1});
    const RotaryTable table = rotary_table(tokens, {7}, rotary_frequencies(2 * pairs));
    std::vector<float> expected = x.to_vector<float>();
    const std::vector<float> cos = table.cos.to_vector<float>(), sin = table.sin.to_vector<float>();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t head = 0; head < rotated; ++head) {
        for (int64_t i = 0; i < pairs; ++i) {
          float &a = expected[static_cast<size_t>((t * heads + head) * width + i)], &b = (&a)[pairs];
          const float c = cos[static_cast<size_t>(t * pairs + i)],
                      s = sin[static_cast<size_t>(t * pairs + i)];
          const float turned = a * c - b * s;
          b = b * c + a * s;
          a = turned;
        }
      }
    }
    EXPECT_EQ(rotary(x, table, rotated).to_vector<float>(), expected) << pairs;
  }
}

}  // namespace
}  // namespace multihead
