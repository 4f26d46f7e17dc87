// Ten steps of a small GPT against PyTorch: tools/goldens/gpt_steps.py made the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "multihead/autograd/tape.h"
#include "multihead/io/json.h"
#include "multihead/models/language_model.h"
#include "multihead/nn/module.h"
#include "multihead/optim/adam.h"

namespace multihead::train {
namespace {

constexpr int64_t kVocabulary = 23, kContext = 13, kBatch = 5;

struct Lcg {
  uint64_t state;
  uint64_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 40;
  }
  double uniform() { return static_cast<double>(next()) / 16777216.0 - 0.5; }
};

models::LanguageModel make_model(Dtype dtype) {
  Rng rng(0);
  models::LanguageModel model({.vocab_size = kVocabulary,
                               .context = kContext,
                               .num_layers = 2,
                               .num_heads = 3,
                               .embed_dim = 24,
                               .activation = Activation::gelu_tanh},
                              rng);
  nn::to(model, dtype);
  Lcg lcg{7};
  for (const auto& [name, tensor] : nn::named_parameters(model)) {
    Tensor values = Tensor::empty(tensor.shape(), Dtype::f64);
    const bool gain = name.find("norm") != std::string::npos && name.ends_with("weight");
    for (double& value : values.span<double>()) value = lcg.uniform() * 0.5 + (gain ? 1 : 0);
    tensor.copy_from(values);
  }
  return model;
}

// Every count/5-th element, as the script stores them.
double gradient_error(const Tensor& gradient, const Json& stored) {
  const auto values = gradient.to_vector<double>();
  const size_t stride = std::max<size_t>(1, values.size() / 5);
  double worst = 0;
  size_t count = 0;
  for (size_t i = 0; i < values.size(); i += stride, ++count) {
    worst = std::max(worst, std::abs(values[i] - stored.at(count).as_double()));
  }
  EXPECT_EQ(count, stored.size());
  return worst;
}

void expect_steps(Dtype dtype, const char* key, double tolerance) {
  const Json golden = io::load_json(MULTIHEAD_SOURCE_DIR "/multihead/train/testdata/gpt_steps.json").at(key);
  ASSERT_EQ(golden.size(), 10u);
  models::LanguageModel model = make_model(dtype);
  const auto parameters = nn::named_parameters(model);
  optim::AdamW optimizer(parameters, {.lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1});
  Lcg lcg{11};
  for (size_t step = 0; step < golden.size(); ++step) {
    const Json& expected = golden.at(step);
    Tensor tokens = Tensor::empty({kBatch, kContext}, Dtype::i32), targets = empty_like(tokens);
    for (int64_t row = 0; row < kBatch; ++row) {
      for (int64_t i = 0; i <= kContext; ++i) {
        const auto token = static_cast<int32_t>(lcg.next() % kVocabulary);
        if (i < kContext) tokens.data<int32_t>()[row * kContext + i] = token;
        if (i > 0) targets.data<int32_t>()[row * kContext + i - 1] = token;
      }
    }
    optimizer.zero_grad();
    Tape tape;
    const Tensor loss = model.loss(tokens, targets);
    tape.backward(loss);
    EXPECT_NEAR(loss.item(), expected.at("loss").as_double(), tolerance) << "step " << step;
    for (const auto& [name, tensor] : parameters) {
      EXPECT_LE(gradient_error(tensor.grad(), expected.at("gradients").at(name)), tolerance)
          << name << ", step " << step;
    }
    EXPECT_NEAR(optimizer.clip_grad_norm(1), expected.at("grad_norm").as_double(), 10 * tolerance);
    optimizer.step();
  }
}

TEST(GptStepsTest, F64FollowsPyTorch) { expect_steps(Dtype::f64, "f64", 1e-10); }
TEST(GptStepsTest, F32FollowsPyTorch) { expect_steps(Dtype::f32, "f32", 1e-5); }

}  // namespace
}  // namespace multihead::train
