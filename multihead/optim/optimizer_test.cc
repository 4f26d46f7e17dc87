#include "multihead/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/text/json.h"
#include "multihead/optim/adam.h"
#include "multihead/optim/sgd.h"

namespace multihead::optim {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Json golden() {
  const std::string path = std::string(MULTIHEAD_SOURCE_DIR) + "/multihead/optim/testdata/optimizers.json";
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return Json::parse(text.str(), path);
}

// As tools/goldens/optimizers.py.
Tensor first_weights(Dtype dtype) {
  Tensor w = Tensor::empty({7}, Dtype::f64);
  for (int i = 0; i < 7; ++i) w.data<double>()[i] = (i - 3) / 4.0;
  Tensor converted = w.to(dtype);
  converted.set_requires_grad();
  return converted;
}

Tensor gradient(int step, Dtype dtype) {
  Tensor g = Tensor::empty({7}, Dtype::f64);
  for (int i = 0; i < 7; ++i) g.data<double>()[i] = ((step * 13 + i * 7) % 11 - 5) / 8.0;
  return g.to(dtype);
}

using Make = std::unique_ptr<Optimizer> (*)(const Tensor&);

void expect_trajectory(const std::string& name, Make make, bool clip = false) {
  const Json rows = golden().at(name);
  ASSERT_EQ(rows.size(), 12u);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const Tensor w = first_weights(dtype);
    const auto optimizer = make(w);
    for (int step = 0; step < 12; ++step) {
      w.set_grad(gradient(step, dtype));
      const Json& row = rows.at(static_cast<size_t>(step));
      if (clip) {
        EXPECT_NEAR(optimizer->clip_grad_norm(0.7), row.at("norm").as_double(), 1e-12);
      }
      optimizer->step();
      const auto values = w.to_vector<double>();
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], row.at("weights").at(i).as_double(), dtype == Dtype::f64 ? 1e-13 : 2e-6)
            << name << " step " << step << " element " << i << " " << dtype;
      }
    }
  }
}

TEST(OptimizerTest, SgdFollowsPyTorch) {
  expect_trajectory("sgd", [](const Tensor& w) -> std::unique_ptr<Optimizer> {
    return std::make_unique<SGD>(std::vector{w}, SgdOptions{.lr = 0.05});
  });
  expect_trajectory("sgd_momentum", [](const Tensor& w) -> std::unique_ptr<Optimizer> {
    return std::make_unique<SGD>(std::vector{w},
                                 SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.02});
  });
  expect_trajectory("sgd_nesterov", [](const Tensor& w) -> std::unique_ptr<Optimizer> {
    return std::make_unique<SGD>(std::vector{w}, SgdOptions{.lr = 0.05, .momentum = 0.8, .nesterov = true});
  });
}

TEST(OptimizerTest, AdamFollowsPyTorch) {
  expect_trajectory("adam", [](const Tensor& w) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Adam>(std::vector{w}, AdamOptions{.lr = 0.03});
  });
  expect_trajectory("adam_l2", [](const Tensor& w) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Adam>(
        std::vector{w},
        AdamOptions{.lr = 0.03, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-5, .weight_decay = 0.1});
  });
}

std::unique_ptr<Optimizer> make_adamw(const Tensor& w) {
  return std::make_unique<AdamW>(std::vector{w},
                                 AdamWOptions{.lr = 0.03, .beta2 = 0.99, .weight_decay = 0.1});
}

TEST(OptimizerTest, AdamWFollowsPyTorch) { expect_trajectory("adamw", make_adamw); }
TEST(OptimizerTest, ClippingFollowsPyTorch) { expect_trajectory("adamw_clipped", make_adamw, true); }

// w -= lr · √(1-β2^t)/(1-β1^t) · m/(√v + eps): the tutorial's update.
TEST(OptimizerTest, EpsHatStandsBeforeTheCorrection) {
  const double lr = 0.1, beta1 = 0.9, beta2 = 0.98, eps = 0.3;
  const Tensor w = first_weights(Dtype::f64);
  std::vector<double> expected = w.to_vector<double>(), m(7), v(7);
  Adam optimizer({w}, {.lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps, .eps_hat = true});
  for (int step = 1; step <= 3; ++step) {
    const auto g = gradient(step, Dtype::f64).to_vector<double>();
    w.set_grad(gradient(step, Dtype::f64));
    optimizer.step();
    for (size_t i = 0; i < 7; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      expected[i] -= lr * std::sqrt(1 - std::pow(beta2, step)) / (1 - std::pow(beta1, step)) * m[i] /
                     (std::sqrt(v[i]) + eps);
      EXPECT_NEAR(w.data<double>()[i], expected[i], 1e-14) << "step " << step;
    }
  }
}

TEST(OptimizerTest, VectorsNeedNotDecay) {
  const auto after = [](auto step) {
    Tensor matrix = Tensor::ones({2, 3}), vector = Tensor::ones({5});
    for (Tensor* t : {&matrix, &vector}) {
      t->set_requires_grad();
      t->set_grad(zeros_like(*t));
    }
    step(ParameterList({matrix, vector}));
    EXPECT_EQ(vector.data<float>()[0], 1.0f);
    return matrix.data<float>()[0];
  };
  EXPECT_EQ(after([](const ParameterList& p) {
              AdamW(p, {.lr = 0.5, .weight_decay = 0.5, .decay_vectors = false}).step();
            }),
            0.75f);
  EXPECT_EQ(after([](const ParameterList& p) {
              SGD(p, {.lr = 0.5, .weight_decay = 0.5, .decay_vectors = false}).step();
            }),
            0.75f);
  EXPECT_NEAR(after([](const ParameterList& p) {
                Adam(p, {.lr = 0.5, .weight_decay = 0.5, .decay_vectors = false}).step();
              }),
              0.5f, 1e-6);
}

struct Named {
  std::string name;
  Tensor tensor;
};

TEST(OptimizerTest, NonFiniteGradientIsNamedBeforeWeightsMove) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Tensor a = Tensor::ones({3}), b = Tensor::ones({17});
    for (Tensor* t : {&a, &b}) {
      t->set_requires_grad();
      t->set_grad(Tensor::ones(t->shape()));
    }
    b.grad().data<float>()[13] = bad;
    AdamW optimizer(std::vector<Named>{{"first.weight", a}, {"second.weight", b}});
    EXPECT_THAT([&] { optimizer.clip_grad_norm(1); },
                ThrowsMessage<NumericError>(HasSubstr("second.weight")));
    EXPECT_THAT(a.to_vector<float>(), testing::Each(1.0f));
    EXPECT_EQ(optimizer.steps(), 0);
  }
}

TEST(OptimizerTest, NormIsThatOfAllGradients) {
  Tensor a = Tensor::zeros({2}), b = Tensor::zeros({2}), c = Tensor::zeros({2}), frozen = Tensor::zeros({1});
  for (Tensor* t : {&a, &b, &c}) t->set_requires_grad();
  a.set_grad(Tensor::of<float>({2}, {3, 0}));
  b.set_grad(Tensor::of<float>({2}, {0, 4}));
  SGD optimizer({a, b, c, frozen}, {.lr = 1});
  EXPECT_DOUBLE_EQ(optimizer.grad_norm(), 5);
  EXPECT_DOUBLE_EQ(optimizer.clip_grad_norm(2.5), 5);
  optimizer.step();
  EXPECT_FLOAT_EQ(a.data<float>()[0], -1.5f);
  EXPECT_EQ(c.data<float>()[0], 0);  // no gradient
  EXPECT_EQ(a.grad().data<float>()[0], 3);
  optimizer.step();  // what clipping decided holds for one step
  EXPECT_FLOAT_EQ(a.data<float>()[0], -4.5f);
  optimizer.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_THROW(optimizer.clip_grad_norm(0), ValueError);
  EXPECT_THROW(optimizer.clip_to(-5, 1), ValueError);
  EXPECT_THROW(optimizer.clip_to(NAN, 1), NumericError);
  EXPECT_THROW(optimizer.clip_to(INFINITY, 1), NumericError);
  EXPECT_THROW(optimizer.clip_grad_norm(std::nan("")), ValueError);
}

TEST(OptimizerTest, StateGoesOnBitForBit) {
  Rng rng(3);
  const Tensor w = randn({13, 7}, rng), copy = w.clone();
  Tensor a = w, b = copy;
  a.set_requires_grad();
  b.set_requires_grad();
  AdamW straight({a});
  StateMap saved;
  std::vector<Tensor> gradients;
  for (int i = 0; i < 6; ++i) gradients.push_back(randn({13, 7}, rng));
  for (int i = 0; i < 6; ++i) {
    if (i == 3) {
      for (const auto& [name, tensor] : straight.state()) saved[name] = tensor.clone();
      b.copy_from(a);
    }
    a.set_grad(gradients[static_cast<size_t>(i)].clone());
    straight.step();
  }
  AdamW resumed({b});
  resumed.load_state(saved);
  EXPECT_EQ(resumed.steps(), 3);
  for (size_t i = 3; i < 6; ++i) {
    b.set_grad(gradients[i].clone());
    resumed.step();
  }
  EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
  // Without the state the weights differ, so the comparison can fail.
  AdamW fresh({b});
  b.set_grad(gradients[0].clone());
  fresh.step();
  EXPECT_NE(a.to_vector<float>(), b.to_vector<float>());
}

TEST(OptimizerTest, ForeignStateIsRefusedWhole) {
  Tensor w = Tensor::ones({4});
  w.set_requires_grad();
  AdamW optimizer(std::vector<Named>{{"w", w}});
  StateMap state;
  for (const auto& [name, tensor] : optimizer.state())
    state[name] = Tensor::full(tensor.shape(), 5, tensor.dtype());
  StateMap missing = state, shaped = state, extra = state;
  missing.erase("exp_avg.w");
  shaped["exp_avg_sq.w"] = Tensor::zeros({5});
  extra["exp_avg.v"] = Tensor::zeros({4});
  EXPECT_THAT([&] { optimizer.load_state(missing); },
              ThrowsMessage<FormatError>(HasSubstr("missing exp_avg.w")));
  EXPECT_THAT([&] { optimizer.load_state(shaped); },
              ThrowsMessage<FormatError>(HasSubstr("exp_avg_sq.w must be")));
  EXPECT_THAT([&] { optimizer.load_state(extra); },
              ThrowsMessage<FormatError>(HasSubstr("unexpected exp_avg.v")));
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_EQ(optimizer.state().at("exp_avg.w").data<float>()[0], 0);
  optimizer.load_state(state);
  EXPECT_EQ(optimizer.steps(), 5);
}

TEST(OptimizerTest, RefusesBadParametersAndOptions) {
  Tensor w = Tensor::ones({4});
  EXPECT_THROW(SGD(std::vector<Tensor>{}), ValueError);
  EXPECT_THROW(SGD({w, w}), ValueError);
  EXPECT_THROW(SGD({w, w.detach()}), ValueError);
  EXPECT_THROW(SGD({Tensor()}), ValueError);
  EXPECT_THROW(SGD({Tensor::ones({2}, Dtype::i32)}), DtypeError);
  EXPECT_THROW(SGD(std::vector<Named>{{"a", w}, {"a", Tensor::ones({2})}}), ValueError);
  EXPECT_THROW(SGD({w}, {.lr = std::nan("")}), ValueError);
  EXPECT_THROW(SGD({w}, {.momentum = 1}), ValueError);
  EXPECT_THROW(SGD({w}, {.nesterov = true}), ValueError);
  EXPECT_THROW(AdamW({w}, {.beta2 = 1}), ValueError);
  EXPECT_THROW(AdamW({w}, {.eps = -1}), ValueError);
  EXPECT_THROW(Adam({w}, {.beta1 = -0.1}), ValueError);
  EXPECT_THROW(Adam({w}, {.weight_decay = std::nan("")}), ValueError);
  w.set_requires_grad();
  SGD optimizer({w});
  w.set_grad(Tensor::ones({5}));
  EXPECT_THROW(optimizer.step(), ShapeError);
  w.set_grad(Tensor::ones({4}, Dtype::f64));
  EXPECT_THROW(optimizer.step(), DtypeError);
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(OptimizerTest, StepIsRefusedBeforeABackwardThatReadsTheWeights) {
  const Tensor w = first_weights(Dtype::f32);
  w.set_grad(Tensor::ones({7}));
  SGD sgd({w}, {.lr = 1});
  Tape tape;
  sgd.step();
  const Tensor loss =
      record({w}, Tensor::ones({1}), [](const Tensor&) -> Gradients { return {Tensor::ones({7})}; });
  EXPECT_THAT([&] { sgd.step(); },
              ThrowsMessage<ValueError>(HasSubstr("optimizer: step(): a Tape holds operations")));
  EXPECT_EQ(sgd.steps(), 1);
  tape.backward(loss);
  sgd.step();
  EXPECT_EQ(sgd.steps(), 2);
}

}  // namespace
}  // namespace multihead::optim
