// PyTorch's numbers (tools/goldens/ops.py), in f64 to 1e-13 and in f32 to its precision.
#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/op_goldens.h"

namespace multihead {
namespace {

using testing::TensorNear;
using Values = std::vector<double>;

struct Input {
  Shape shape;
  const Values& value;
  const Values& gradient;
};

struct Golden {
  std::vector<Input> inputs;
  Shape shape;
  const Values& seed;
  const Values& y;
};

template <class F>
void check(const Golden& golden, F&& op) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const double tolerance = dtype == Dtype::f64 ? 1e-13 : 2e-6;
    std::vector<Tensor> x;
    for (const Input& in : golden.inputs)
      x.push_back(Tensor::of(in.shape, in.value).to(dtype).set_requires_grad());
    Tape tape;
    const Tensor y = op(x);
    EXPECT_THAT(y, TensorNear(Tensor::of(golden.shape, golden.y), tolerance, tolerance));
    tape.backward(y, Tensor::of(golden.shape, golden.seed).to(dtype));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_THAT(x[i].grad(),
                  TensorNear(Tensor::of(x[i].shape(), golden.inputs[i].gradient), tolerance, tolerance));
    }
  }
}

#define MH_INPUT(name, i, ...) \
  Input { __VA_ARGS__, goldens::name##_x##i, goldens::name##_d##i }
#define MH_GOLDEN(name, shape, ...) \
  Golden { {__VA_ARGS__}, shape, goldens::name##_seed, goldens::name##_y }

using X = std::vector<Tensor>;

TEST(GoldenTest, Norms) {
  check(MH_GOLDEN(layer_norm, (Shape{3, 7}), MH_INPUT(layer_norm, 0, {3, 7}), MH_INPUT(layer_norm, 1, {7}),
                  MH_INPUT(layer_norm, 2, {7})),
        [](const X& x) { return layer_norm(x[0], x[1], x[2], 1e-5); });
  check(MH_GOLDEN(rms_norm, (Shape{3, 7}), MH_INPUT(rms_norm, 0, {3, 7}), MH_INPUT(rms_norm, 1, {7})),
        [](const X& x) { return rms_norm(x[0], x[1], 1e-6); });
}

TEST(GoldenTest, Activations) {
  check(MH_GOLDEN(gelu, Shape{13}, MH_INPUT(gelu, 0, {13})), [](const X& x) { return gelu(x[0]); });
  check(MH_GOLDEN(gelu_tanh, Shape{13}, MH_INPUT(gelu_tanh, 0, {13})),
        [](const X& x) { return gelu_tanh(x[0]); });
  check(MH_GOLDEN(silu, Shape{13}, MH_INPUT(silu, 0, {13})), [](const X& x) { return silu(x[0]); });
  check(MH_GOLDEN(swiglu, (Shape{3, 4}), MH_INPUT(swiglu, 0, {3, 8})),
        [](const X& x) { return glu(x[0], Activation::silu); });
}

TEST(GoldenTest, LogSoftmax) {
  check(MH_GOLDEN(log_softmax, (Shape{3, 5}), MH_INPUT(log_softmax, 0, {3, 5})),
        [](const X& x) { return log_softmax(x[0]); });
}

TEST(GoldenTest, CrossEntropy) {
  const Tensor targets = Tensor::of<int64_t>({5}, {2, 0, -100, 4, 4});
  const auto with = [&](const CrossEntropyOptions& options) {
    return [targets, options](const X& x) { return cross_entropy(x[0], targets, options); };
  };
  check(MH_GOLDEN(cross_entropy, Shape{}, MH_INPUT(cross_entropy, 0, {5, 5})), with({}));
  check(MH_GOLDEN(cross_entropy_smooth, Shape{}, MH_INPUT(cross_entropy_smooth, 0, {5, 5})),
        with({.label_smoothing = 0.2}));
  check(MH_GOLDEN(cross_entropy_sum, Shape{}, MH_INPUT(cross_entropy_sum, 0, {5, 5})),
        with({.label_smoothing = 0.2, .reduction = Reduction::sum}));
  check(MH_GOLDEN(cross_entropy_none, Shape{5}, MH_INPUT(cross_entropy_none, 0, {5, 5})),
        with({.reduction = Reduction::none}));
}

}  // namespace
}  // namespace multihead
