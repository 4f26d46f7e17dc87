// Every op of the list on bf16 inputs beside f32, and Autocast.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/op_list.h"
#include "multihead/testing/tensors.h"

namespace multihead {
namespace {

using testing::normal;
using testing::OpCase;
using testing::OpResults;

// The outputs and gradients of their sums, the inputs rounded to bf16 and taken as `dtype`.
OpResults run_as(const OpCase& c, Dtype dtype) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : c.inputs) inputs.push_back(x.to(Dtype::bf16).to(dtype).clone().set_requires_grad());
  Tape tape;
  OpResults run;
  run.outputs = c.f(inputs);
  Tensor total;
  for (const Tensor& y : run.outputs) {
    if (!y.requires_grad()) continue;
    const Tensor part = sum(cast(y, Dtype::f32));
    total = total.defined() ? add(total, part) : part;
  }
  tape.backward(total);
  for (const Tensor& x : inputs) run.gradients.push_back(x.grad());
  return run;
}

void expect_relatively_near(const Tensor& got, const Tensor& expected, double relative,
                            const std::string& what) {
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  const auto x = got.to_vector<double>(), y = expected.to_vector<double>();
  const double bound = relative * std::max(testing::largest_finite(expected), 1e-3);
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;  // infinities
    ASSERT_LE(std::abs(x[i] - y[i]), bound) << what << " at " << i << ": " << x[i] << ", expected " << y[i];
  }
}

class NarrowTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(NarrowTest, Bf16IsNearF32) {
  const OpCase& c = GetParam();
  OpResults f32, bf16;
  try {
    f32 = run_as(c, Dtype::f32);
    bf16 = run_as(c, Dtype::bf16);
  } catch (const DtypeError&) {
    ASSERT_EQ(c.op.find("attention"), 0u) << "only its terms, f64 here, do not become bf16";
    GTEST_SKIP();
  }
  // One rounding of the result, or a few where an op is made of others: 2^-9 each.
  for (size_t i = 0; i < f32.outputs.size(); ++i)
    expect_relatively_near(bf16.outputs[i], f32.outputs[i], 0.012, "output");
  for (size_t i = 0; i < f32.gradients.size(); ++i) {
    if (!f32.gradients[i].defined()) continue;
    EXPECT_EQ(bf16.gradients[i].dtype(), Dtype::f32);
    expect_relatively_near(bf16.gradients[i], f32.gradients[i], 0.03, "gradient");
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, NarrowTest, ::testing::ValuesIn(testing::op_cases()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.op + "_" + info.param.variant;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

std::vector<float> values(const Tensor& x) { return x.to_vector<float>(); }

TEST(NarrowLinearTest, IsTheF32ProductOfTheNumbersRoundedOnce) {
  kernels::set_bf16_dots(false);  // sums of pairs have other last bits
  const Tensor x = normal({7, 37}, 1).to(Dtype::bf16), w = normal({19, 37}, 2).to(Dtype::bf16),
               bias = normal({19}, 3), residual = normal({7, 19}, 4);
  const Tensor exact = linear(x.to(Dtype::f32), w.to(Dtype::f32), bias, {.activation = Activation::gelu});
  const Tensor y = linear(x, w, bias, {.activation = Activation::gelu});
  EXPECT_EQ(y.dtype(), Dtype::bf16);
  EXPECT_EQ(values(y), values(exact.to(Dtype::bf16)));
  const Tensor joined = linear(x, w, bias, {.activation = Activation::gelu, .residual = residual});
  EXPECT_EQ(joined.dtype(), Dtype::f32);
  EXPECT_EQ(values(joined), values(add(exact, residual)));
  EXPECT_THROW(linear(x.to(Dtype::f32), w), DtypeError);
  EXPECT_THROW(linear(x, w.to(Dtype::f32)), DtypeError);
  kernels::set_bf16_dots(true);
}

TEST(AutocastTest, ProductsAreBf16AndStatisticsF32) {
  const Tensor x = normal({5, 16}, 1), w = normal({12, 16}, 2), heads = normal({1, 2, 5, 8}, 3);
  const Tensor residual = normal({5, 12}, 4);
  const Autocast autocast;
  EXPECT_TRUE(Autocast::active());
  const Tensor y = linear(x, w);
  EXPECT_EQ(y.dtype(), Dtype::bf16);
  EXPECT_EQ(matmul(x, transpose(w, 0, 1)).dtype(), Dtype::bf16);
  EXPECT_EQ(attention(heads, heads, heads).dtype(), Dtype::bf16);
  EXPECT_EQ(linear(x, w, {}, {.residual = residual}).dtype(), Dtype::f32);
  EXPECT_EQ(softmax(y).dtype(), Dtype::f32);
  EXPECT_EQ(layer_norm(y).dtype(), Dtype::f32);
  EXPECT_EQ(cross_entropy(y, Tensor::zeros({5}, Dtype::i64)).dtype(), Dtype::f32);
  EXPECT_EQ(add(y, y).dtype(), Dtype::bf16);
  EXPECT_EQ(add(y, residual).dtype(), Dtype::f32);
  const AddNorm joined = add_rms_norm(y, residual);
  EXPECT_EQ(joined.sum.dtype(), Dtype::f32);
  EXPECT_EQ(joined.normed.dtype(), Dtype::f32);
  EXPECT_EQ(linear(x.to(Dtype::f64), w.to(Dtype::f64)).dtype(), Dtype::f64);
}

// Norms, dropout and rotations of bf16 give the bits of widening it first.
TEST(AutocastTest, Bf16IsReadAsIfWidened) {
  const Tensor x = normal({3, 5, 16}, 1).to(Dtype::bf16), wide = x.to(Dtype::f32),
               stream = normal({3, 5, 16}, 2), weight = normal({16}, 3), bias = normal({16}, 4);
  const AddNorm joined = add_layer_norm(x, stream, weight, bias),
                exact = add_layer_norm(wide, stream, weight, bias);
  EXPECT_EQ(values(joined.sum), values(exact.sum));
  EXPECT_EQ(values(joined.normed), values(exact.normed));
  const auto drawn = [](auto&& op) {
    Rng rng(9);
    return op(rng);
  };
  const auto same = [&](auto&& op, Dtype dtype) {
    const Tensor y = drawn([&](Rng& rng) { return op(x, rng); });
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(values(y), values(drawn([&](Rng& rng) { return op(wide, rng); }).to(dtype)));
  };
  same([](const Tensor& t, Rng& rng) { return dropout(t, 0.4, &rng); }, Dtype::bf16);
  same([&](const Tensor& t, Rng& rng) { return add_dropout(stream, t, 0.4, &rng); }, Dtype::f32);
  const RotaryTable table = rotary_table(5, {0, 1, 2}, rotary_frequencies(8, 10000), RotaryLayout::halves);
  same([&](const Tensor& t, Rng&) { return rotary(reshape(t, {3, 5, 2, 8}), table); }, Dtype::bf16);
}

TEST(Bf16Test, RowsAreReadAsIfWidened) {
  const Tensor weight = normal({37}, 3).to(Dtype::bf16).to(Dtype::f32), bias = normal({37}, 4);
  Tensor x = normal({19, 37}, 1).to(Dtype::bf16);
  for (int64_t i = 0; i < 37; ++i)
    x.data<BFloat16>()[37 + i] = BFloat16(-std::numeric_limits<float>::infinity());
  const auto results = [&](auto&& op, Dtype dtype) {
    const Tensor leaf = x.to(dtype).clone().set_requires_grad(),
                 w = (dtype == Dtype::bf16 ? weight.to(dtype) : weight).clone().set_requires_grad();
    Tape tape;
    const Tensor y = op(leaf, w);
    EXPECT_EQ(y.dtype(), dtype);
    tape.backward(y, normal({19, 37}, 5));
    std::vector<std::vector<float>> all = {values(y.detach().to(Dtype::bf16)), values(leaf.grad())};
    if (w.grad().defined()) all.push_back(values(w.grad()));
    return all;
  };
  const auto same = [&](auto&& op) {
    const auto bf16 = results(op, Dtype::bf16), f32 = results(op, Dtype::f32);
    ASSERT_EQ(bf16.size(), f32.size());
    for (size_t i = 0; i < f32.size(); ++i) {
      EXPECT_EQ(std::memcmp(bf16[i].data(), f32[i].data(), f32[i].size() * sizeof(float)), 0) << i;
    }
  };
  same([](const Tensor& t, const Tensor&) { return softmax(t); });
  same([](const Tensor& t, const Tensor&) { return softmax(t, 0); });
  x = normal({19, 37}, 2).to(Dtype::bf16);
  same([&](const Tensor& t, const Tensor& w) { return layer_norm(t, w, bias); });
  same([](const Tensor& t, const Tensor& w) { return layer_norm(t, w); });
  same([](const Tensor& t, const Tensor& w) { return rms_norm(t, w); });
  same([](const Tensor& t, const Tensor&) { return rms_norm(t); });
}

TEST(AutocastTest, NormsKeepBf16ForTheirBackward) {
  const Tensor x = normal({512, 512}, 1).set_requires_grad(), weight = normal({512}, 2).set_requires_grad(),
               seed = normal({512, 512}, 3);
  std::vector<std::vector<float>> gradients;
  int64_t kept[2];
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const Autocast autocast(dtype);
    Tape tape;
    const int64_t before = memory_stats().live_bytes;
    Tensor y = rms_norm(scale(x, 2), weight);
    const int64_t bytes = static_cast<int64_t>(y.bytes());
    kept[dtype == Dtype::bf16] = memory_stats().live_bytes - before - bytes;
    tape.backward(y, seed);
    gradients.push_back(values(x.grad())), gradients.push_back(values(weight.grad()));
    x.set_grad({}), weight.set_grad({});
  }
  EXPECT_LE(kept[1], kept[0] * 6 / 10);
  for (size_t k = 0; k < 2; ++k) {
    double error = 0, size = 0;
    for (size_t i = 0; i < gradients[k].size(); ++i) {
      error += std::pow(gradients[k][i] - gradients[k + 2][i], 2), size += std::pow(gradients[k][i], 2);
    }
    EXPECT_LE(std::sqrt(error / size), 0.003) << k;
    EXPECT_GT(error, 0) << k;
  }
}

TEST(AutocastTest, NestsAndIsTheThreadsOwn) {
  EXPECT_THROW(const Autocast refused(Dtype::f16), DtypeError);
  EXPECT_FALSE(Autocast::active());
  {
    const Autocast outer;
    {
      const Autocast off(Dtype::f32);
      EXPECT_FALSE(Autocast::active());
    }
    EXPECT_TRUE(Autocast::active());
    std::thread([] { EXPECT_FALSE(Autocast::active()); }).join();
  }
  EXPECT_FALSE(Autocast::active());
}

TEST(AutocastTest, WeightsAreConvertedOncePerTapeAndSeeTheirUpdates) {
  const Tensor x = normal({3, 8}, 1), w = normal({4, 8}, 2).set_requires_grad();
  const Autocast autocast;
  Tape tape;
  linear(x, w);
  const size_t nodes = tape.size();  // a cast and a product
  EXPECT_EQ(nodes, 2u);
  const Tensor y = linear(x, w);
  EXPECT_EQ(tape.size(), nodes + 1);
  tape.backward(sum(cast(add(y, linear(x, w)), Dtype::f32)));
  EXPECT_EQ(w.grad().dtype(), Dtype::f32);
  const std::vector<float> twice = values(w.grad()), ones(4 * 3, 1.0f);
  const Tensor once = matmul(Tensor::of<float>({4, 3}, ones), x).to(Dtype::f32);
  for (size_t i = 0; i < twice.size(); ++i) EXPECT_NEAR(twice[i], 2 * once.to_vector<float>()[i], 0.05);
  w.fill(0);  // as an optimiser does between steps, within one scope
  EXPECT_EQ(testing::largest_finite(linear(x, w)), 0);
}

}  // namespace
}  // namespace multihead
