// Values and gradients equal PyTorch's.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"

namespace multihead {
namespace {

struct AttentionGolden {
  const char* name;
  std::vector<double> out, dq, dk, dv;
};

const std::vector<AttentionGolden> kGoldens = {
#include "multihead/ops/attention/goldens.inc"
};

Tensor sines(int number, const Shape& shape, Dtype dtype) {
  const Tensor x = Tensor::empty(shape, Dtype::f64);
  for (int64_t n = 0; n < x.numel(); ++n)
    x.data<double>()[n] = std::sin(0.7 * static_cast<double>(n) + number);
  return x.to(dtype);
}

void expect_near(const Tensor& x, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  const std::vector<double> values = x.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], tolerance) << what << " at " << i;
}

TEST(AttentionGoldenTest, EqualsPyTorch) {
  const Tensor flags = Tensor::of<bool>(
      {3, 5}, {true, false, true, true, false, false, true, true, false, true, true, true, true, true, true});
  ASSERT_EQ(kGoldens.size(), 8u);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const std::map<std::string, AttentionOptions> options = {
        {"plain", {}},
        {"scale", {.scale = 0.3f}},
        {"causal_start", {.mask = causal(Align::start)}},
        {"keep", {.mask = keep(flags)}},
        {"bias", {.bias = sines(5, {4, 3, 5}, dtype)}},
        {"softcap", {.softcap = 0.5f}},
        {"relative_key",
         {.relative_bias = sines(7, {4, 10}, dtype), .relative_key = sines(6, {4, 10, 4}, dtype)}},
        {"alibi", {.alibi_slopes = Tensor::of<float>({4}, {0.5f, 0.25f, 0.125f, 0.0625f}).to(dtype)}},
    };
    for (const AttentionGolden& golden : kGoldens) {
      Tensor q = sines(1, {2, 4, 3, 4}, dtype).set_requires_grad(),
             k = sines(2, {2, 2, 5, 4}, dtype).set_requires_grad();
      Tensor v = sines(3, {2, 2, 5, 3}, dtype).set_requires_grad();
      Tape tape;
      const Tensor y = attention(q, k, v, options.at(golden.name));
      tape.backward(y, sines(4, {2, 4, 3, 3}, dtype));
      // 0.3f is not 0.3: a scale is a float.
      const double tolerance = dtype == Dtype::f32                   ? 2e-6
                               : std::string(golden.name) == "scale" ? 1e-7
                                                                     : 1e-14;
      const std::string what = concat(golden.name, " ", name(dtype));
      expect_near(y, golden.out, tolerance, what);
      expect_near(q.grad(), golden.dq, tolerance, what + " d_query");
      expect_near(k.grad(), golden.dk, tolerance, what + " d_key");
      expect_near(v.grad(), golden.dv, tolerance, what + " d_value");
    }
  }
}

}  // namespace
}  // namespace multihead
