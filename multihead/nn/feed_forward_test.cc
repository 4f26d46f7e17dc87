#include "multihead/nn/feed_forward.h"

#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/memory/storage.h"
#include "multihead/nn/module.h"

namespace multihead::nn {
namespace {

// The way that keeps less memory under a tape must not show in the numbers.
TEST(FeedForwardTest, ATapeDoesNotChangeTheBits) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    for (const bool gated : {false, true}) {
      if (gated && activation == Activation::none) continue;
      Rng rng(3);
      FeedForward network({.embed_dim = 13, .hidden_dim = 37, .activation = activation, .gated = gated}, rng);
      const Tensor x = randn({2, 5, 13}, rng), residual = randn({2, 5, 13}, rng);
      const auto plain = network(x, nullptr, residual).to_vector<float>();
      const Tape tape;
      EXPECT_EQ(network(x, nullptr, residual).to_vector<float>(), plain);
    }
  }
}

TEST(FeedForwardTest, TrainingKeepsTheHiddenLayerOnce) {
  Rng rng(3);
  FeedForward network({.embed_dim = 64, .hidden_dim = 256, .activation = Activation::gelu}, rng);
  const Tensor x = randn({100, 64}, rng);
  const int64_t hidden = 100 * 256 * 4, out = 100 * 64 * 4;
  Tape tape;
  const int64_t before = memory_stats().live_bytes;
  const Tensor y = network(x);
  EXPECT_LE(memory_stats().live_bytes - before, hidden + out + hidden / 4);
}

}  // namespace
}  // namespace multihead::nn
