// The layers of nn/ against PyTorch's. The test is here because it reads a safetensors file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/io/safetensors.h"
#include "multihead/nn/encoder_decoder.h"
#include "multihead/ops/attention/masks/mask.h"
#include "multihead/ops/elementwise.h"

namespace multihead::nn {
namespace {

constexpr int64_t kEmbed = 4;

// The formulas of tools/goldens/transformer_layers.py.
Tensor wave(const Shape& shape, int k, double scale) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = scale * std::sin(1.3 * static_cast<double>(i) + 0.7 * k);
  return Tensor::of<double>(shape, values);
}

template <class Module>
void fill(Module& module) {
  std::vector<NamedTensor> list = named_parameters(module);
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t k = 0; k < list.size(); ++k) {
    std::vector<double> values = wave(list[k].tensor.shape(), static_cast<int>(k), 0.4).to_vector<double>();
    const bool is_norm = list[k].name.find("norm") != std::string::npos && list[k].name.ends_with("weight");
    if (is_norm) {
      for (double& value : values) value += 1;
    }
    list[k].tensor.copy_from(Tensor::of<double>(list[k].tensor.shape(), values));
  }
}

class TransformerGoldenTest : public ::testing::TestWithParam<Dtype> {
 protected:
  TransformerGoldenTest()
      : expected_(io::load_safetensors(MULTIHEAD_SOURCE_DIR "/tests/data/transformer_layers.safetensors")) {}

  Tensor input(int64_t length, int k) const {
    Tensor x = wave({2, length, kEmbed}, k, 1).to(GetParam());
    x.set_requires_grad(true);
    return x;
  }

  void expect_near(const Tensor& got, const std::string& name) {
    const auto found = expected_.find(name);
    ASSERT_NE(found, expected_.end()) << name;
    ASSERT_EQ(got.shape(), found->second.shape()) << name;
    const auto x = got.to_vector<double>(), y = found->second.to_vector<double>();
    const double tolerance = GetParam() == Dtype::f64 ? 1e-10 : 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(x[i], y[i], tolerance * std::max(1.0, std::abs(y[i]))) << name << " at " << i;
    }
    ++compared_;
  }

  template <class Module, class Run>
  void compare(const std::string& name, Module& module, Run&& run,
               const std::vector<std::pair<std::string, Tensor>>& inputs) {
    to(module, GetParam());  // before: weights that were f32 once would stay rounded
    fill(module);
    Tape tape;
    const Tensor y = run();
    tape.backward(y, wave(y.shape(), 99, 1).to(GetParam()));
    expect_near(y, name + "/output");
    for (const auto& [input_name, x] : inputs) expect_near(x.grad(), name + "/grad/" + input_name);
    for (const NamedTensor& p : named_parameters(module))
      expect_near(p.tensor.grad(), name + "/grad/" + p.name);
  }

  StackOptions options(bool norm_first, Activation activation) const {
    StackOptions o;
    o.layer.attention = {.embed_dim = kEmbed, .num_heads = 2};
    o.layer.feed_forward = {.embed_dim = kEmbed, .hidden_dim = 7, .activation = activation};
    o.layer.norm_first = norm_first;
    o.num_layers = 2;
    o.final_norm = true;
    return o;
  }

  io::TensorMap expected_;
  size_t compared_ = 0;
};

std::string case_name(bool norm_first, Activation activation, bool masked) {
  return std::string(norm_first ? "pre" : "post") + (activation == Activation::relu ? "_relu" : "_gelu") +
         (masked ? "_masked" : "_open");
}

TEST_P(TransformerGoldenTest, OutputsAndGradientsArePyTorchs) {
  const Mask source_mask = lengths(Tensor::of<int64_t>({2}, std::vector<int64_t>{5, 3}));
  for (const bool norm_first : {false, true}) {
    for (const Activation activation : {Activation::relu, Activation::gelu}) {
      const StackOptions stack = options(norm_first, activation);
      Rng rng(1);
      for (const bool masked : {false, true}) {
        const std::string name = case_name(norm_first, activation, masked);
        const Tensor source = input(5, 50), memory = input(5, 50), target = input(4, 60);
        TransformerLayer encoder(stack.layer, rng);
        LayerCall call;
        if (masked) call.attention.mask = source_mask;
        compare("encoder/" + name, encoder, [&] { return encoder(source, call); }, {{"source", source}});

        TransformerLayerOptions with_cross = stack.layer;
        with_cross.cross_attention = true;
        TransformerLayer decoder(with_cross, rng);
        LayerCall cross;
        cross.memory = memory;
        if (masked) cross.attention.mask = causal(), cross.cross.mask = source_mask;
        compare("decoder/" + name, decoder, [&] { return decoder(target, cross); },
                {{"source", memory}, {"target", target}});
      }
      if ((activation == Activation::gelu) != norm_first) continue;
      const Tensor source = input(5, 50), target = input(4, 60);
      StackOptions one = stack;
      one.num_layers = 1;
      Transformer model(one, stack, rng);
      compare("transformer/" + case_name(norm_first, activation, true), model,
              [&] { return model(source, target, {.mask = source_mask}, {.memory_mask = source_mask}); },
              {{"source", source}, {"target", target}});
    }
  }
  EXPECT_EQ(compared_, expected_.size());  // nothing stored was passed over
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TransformerGoldenTest, ::testing::Values(Dtype::f32, Dtype::f64),
                         [](const auto& info) { return info.param == Dtype::f32 ? "f32" : "f64"; });

}  // namespace
}  // namespace multihead::nn
