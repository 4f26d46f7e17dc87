// One const model, many threads: each with its own state or its own tape.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "multihead/autograd/tape.h"
#include "multihead/nn/attention.h"
#include "multihead/nn/encoder_decoder.h"
#include "multihead/nn/module.h"

namespace multihead::nn {
namespace {

using Floats = std::vector<float>;

constexpr int kThreads = 4;

// Every thread must find the results of one alone.
void expect_as_alone(const std::function<Floats(int)>& work) {
  std::vector<Floats> alone, together(kThreads);
  for (int n = 0; n < kThreads; ++n) alone.push_back(work(n));
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&, n] {
      for (int round = 0; round < 5; ++round) together[static_cast<size_t>(n)] = work(n);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
}

TEST(ConcurrencyTest, OneModelManyDecodingStates) {
  Rng rng(1);
  StackOptions options;
  options.num_layers = 2;
  options.layer.attention = {.embed_dim = 16, .num_heads = 4};
  options.layer.feed_forward = {.embed_dim = 16, .hidden_dim = 32};
  const TransformerDecoder decoder(options, rng);
  expect_as_alone([&](int n) {
    Rng own(static_cast<uint64_t>(n));
    DecodeState state = decoder.start(randn({2, 5 + n, 16}, own), {}, 8);
    Floats all;
    for (int step = 0; step < 8; ++step) {
      const Floats y = decoder(randn({2, 1, 16}, own), {}, {.state = &state}).to_vector<float>();
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  });
}

TEST(ConcurrencyTest, OneStateServesOneCallAtATime) {
  Rng rng(3);
  StackOptions options;
  options.num_layers = 1;
  options.layer.attention = {.embed_dim = 8, .num_heads = 2};
  options.layer.feed_forward = {.embed_dim = 8, .hidden_dim = 16};
  const TransformerDecoder decoder(options, rng);
  const Tensor memory = randn({2, 5, 8}, rng), x = randn({2, 1, 8}, rng);
  DecodeState state = decoder.start(memory, {}, 4), expected = state;
  {
    const Busy other_call(state.in_use, "test");
    std::thread([&] {
      EXPECT_THROW(decoder(x, {}, {.state = &state}), ValueError);
      EXPECT_THROW(state.reorder(std::vector<int64_t>{1, 0}), ValueError);
      EXPECT_THROW(state.repeat(2), ValueError);
      EXPECT_THROW(state.truncate(0), ValueError);
      EXPECT_THROW(state.clear(0), ValueError);
      EXPECT_THROW(state.fork(), ValueError);
      DecodeState copy = state;  // not in use
      EXPECT_NO_THROW(copy.truncate(0));
    }).join();
  }
  EXPECT_EQ(state.lengths, expected.lengths);
  EXPECT_THROW(decoder(randn({3, 1, 8}, rng), {}, {.state = &state}), ShapeError);  // lets go of it
  EXPECT_EQ(decoder(x, {}, {.state = &state}).to_vector<float>(),
            decoder(x, {}, {.state = &expected}).to_vector<float>());
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{1, 1}));
}

TEST(ConcurrencyTest, OneTapePerThread) {
  Rng rng(2);
  MultiHeadAttention made({.embed_dim = 16, .num_heads = 4}, rng);
  for (Tensor weight : parameters(made)) weight.set_requires_grad(false);  // gradients of weights are shared
  const MultiHeadAttention& attention = made;
  expect_as_alone([&](int n) {
    Rng own(static_cast<uint64_t>(n));
    Tensor x = randn({2, 60 + n, 16}, own).set_requires_grad();
    Tape tape;
    const Tensor y = attention(x, x, x, {.mask = causal()});
    tape.backward(y, Tensor::ones(y.shape()));
    return x.grad().to_vector<float>();
  });
}

}  // namespace
}  // namespace multihead::nn
