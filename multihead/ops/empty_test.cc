// Sizes of zero in every axis of every op: what the shapes say comes out, and every result and gradient is
// written.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/spoiled-inl.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/testing/op_list.h"
#include "multihead/testing/option_cases.h"

namespace multihead {
namespace {

using testing::OpCase;
using testing::OpResults;

// All results meet in one node, so that a single backward seeds them together, with ones.
std::vector<Tensor> gradients_of(Tape& tape, const std::vector<Tensor>& outputs,
                                 const std::vector<Tensor>& leaves) {
  std::vector<std::shared_ptr<GradientSlot>> slots;
  std::vector<Tensor> ones;
  for (const Tensor& y : outputs) {
    slots.push_back(y.gradient_slot());
    ones.push_back(Tensor::ones(y.shape(), y.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32));
  }
  Tensor loss = Tensor::zeros({});
  tape.add(std::move(slots), {&loss, 1}, [&](const std::vector<Tensor>&) -> Gradients { return ones; });
  tape.backward(loss);
  std::vector<Tensor> gradients;
  for (const Tensor& x : leaves) gradients.push_back(x.grad());
  return gradients;
}

OpResults run(const OpCase& c, Dtype dtype) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : c.inputs) leaves.push_back(x.to(dtype).clone().set_requires_grad());
  Tape tape;
  OpResults r;
  r.outputs = c.f(leaves);
  r.gradients = gradients_of(tape, r.outputs, leaves);
  for (Tensor& x : r.outputs) x = x.detach();
  return r;
}

void expect_near(const std::vector<Tensor>& got, const std::vector<Tensor>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t n = 0; n < got.size(); ++n) {
    ASSERT_EQ(got[n].defined(), expected[n].defined()) << what << " " << n;
    if (!got[n].defined()) continue;
    ASSERT_EQ(got[n].shape(), expected[n].shape()) << what << " " << n;
    const auto x = got[n].to_vector<double>(), y = expected[n].to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(y[i]) && std::isnan(x[i]))) continue;
      ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(y[i]))) << what << " " << n << " at " << i;
    }
  }
}

// Whether the op takes such inputs, which is its forward pass's to say: what that took, the backward must take.
bool takes(const OpCase& c) {
  const NoTape silent;
  try {
    c.f(c.inputs);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

class EmptyTest : public ::testing::TestWithParam<OpCase> {};

// f64 against differences, the other types against f64. An op that does not take a size says so.
TEST_P(EmptyTest, EverythingIsWritten) {
  const detail::SpoiledMemory spoiled;
  int ran = 0, refused = 0;
  for (const OpCase& c : testing::emptied(GetParam())) {
    if (!takes(c)) {
      ++refused;
      continue;
    }
    const OpResults wide = run(c, Dtype::f64);
    ++ran;
    bool numbers = true;
    for (const Tensor& y : wide.outputs) {
      for (const double x : y.to_vector<double>()) numbers = numbers && std::isfinite(x);
    }
    if (numbers) {
      const testing::GradcheckResult result = testing::gradcheck(c.f, c.inputs, c.options);
      EXPECT_TRUE(result) << c << ": " << result.message;
    }
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      OpResults narrow;
      try {
        narrow = run(c, dtype);
      } catch (const DtypeError&) {
        continue;
      }
      const std::string what = concat(c.op, ", ", c.variant, ", ", dtype);
      expect_near(narrow.outputs, wide.outputs, dtype == Dtype::f32 ? 1e-4 : 0.03, what + ": output");
      expect_near(narrow.gradients, wide.gradients, dtype == Dtype::f32 ? 1e-4 : 0.03, what + ": gradient");
    }
  }
  RecordProperty("ran", ran);
  RecordProperty("refused", refused);
}

INSTANTIATE_TEST_SUITE_P(Ops, EmptyTest, ::testing::ValuesIn(testing::op_cases()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.op + "_" + info.param.variant;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

TEST(SpoiledMemoryTest, HoldsNumbersThatAreSeen) {
  const detail::SpoiledMemory spoiled;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const double x : Tensor::empty({30}, dtype).to_vector<double>()) ASSERT_TRUE(std::isnan(x)) << dtype;
  }
}

// Every op has at least one case that runs without elements.
TEST(EmptyOpsTest, EveryOpTakesASizeOfZero) {
  std::map<std::string, int> ran;
  const NoTape silent;
  for (const OpCase& listed : testing::op_cases()) {
    std::vector<OpCase> cases = testing::emptied(listed);
    cases.push_back(listed);
    for (const OpCase& c : cases) {
      bool empty = false;
      for (const Tensor& x : c.inputs) empty = empty || x.numel() == 0;
      if (!empty) continue;
      ran[c.op] += 0;
      try {
        c.f(c.inputs);
        ++ran[c.op];
      } catch (const std::invalid_argument&) {
      }
    }
  }
  for (const auto& [op, count] : ran) EXPECT_GT(count, 0) << op;
}

// Sizes of attention that are zero, by name.
const std::vector<std::pair<std::string, std::vector<int64_t testing::AttentionDims::*>>>& empty_axes() {
  using D = testing::AttentionDims;
  static const std::vector<std::pair<std::string, std::vector<int64_t D::*>>> axes = {
      {"B", {&D::batch}},
      {"H", {&D::heads, &D::kv_heads}},
      {"H of queries", {&D::heads}},
      {"Tq", {&D::queries}},
      {"Tk", {&D::keys}},
      {"Dv", {&D::value_dim}},
      {"Tq and Tk", {&D::queries, &D::keys}},
      {"B and Tk", {&D::batch, &D::keys}},
      {"H and Tk", {&D::heads, &D::kv_heads, &D::keys}},
      {"Tk and Dv", {&D::keys, &D::value_dim}},
      {"everything", {&D::batch, &D::heads, &D::kv_heads, &D::queries, &D::keys, &D::value_dim}},
  };
  return axes;
}

using Attention = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&,
                             const ScoreMod&);

OpResults run_attention(Attention op, const testing::OptionCase& c, const testing::AttentionDims& d,
                        Dtype dtype) {
  const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  Rng rng(5), dropout(7);
  std::vector<Tensor> leaves;
  for (const Shape& shape :
       {Shape{d.batch, d.heads, d.queries, d.dim}, Shape{d.batch, d.kv_heads, d.keys, d.dim},
        Shape{d.batch, d.kv_heads, d.keys, d.value_dim}}) {
    leaves.push_back(randn(shape, rng, wide).to(dtype).clone().set_requires_grad());
  }
  AttentionOptions options = c.options(d, wide, rng);
  for (const auto member : detail::kLearnedOptions) {
    if (Tensor& x = options.*member; x.defined()) leaves.push_back(x.set_requires_grad());
  }
  if (c.dropout) options.rng = &dropout;
  AttentionCapture capture;
  Tensor lse;
  options.lse = &lse, options.capture = &capture, options.allow_binary_bias = true;
  Tape tape;
  OpResults r;
  r.outputs = {op(leaves[0], leaves[1], leaves[2], options, c.score_mod), lse, capture.weights};
  r.gradients = gradients_of(tape, r.outputs, leaves);
  for (Tensor& x : r.outputs) x = x.detach();
  return r;
}

TEST(EmptyAttentionTest, EqualsTheDefinition) {
  const detail::SpoiledMemory spoiled;
  int ran = 0, refused = 0;
  for (const testing::OptionCase& c : testing::attention_cases()) {
    for (const auto& [name, members] : empty_axes()) {
      testing::AttentionDims d;
      for (const auto member : members) d.*member = 0;
      for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
        OpResults fused;
        try {
          fused = run_attention(attention, c, d, dtype);
        } catch (const std::invalid_argument&) {
          ++refused;
          EXPECT_THROW(run_attention(attention_composed, c, d, dtype), std::invalid_argument) << c.name;
          continue;
        }
        ++ran;
        const OpResults expected = run_attention(attention_composed, c, d, dtype);
        const double tolerance = dtype == Dtype::f64 ? 1e-12 : dtype == Dtype::f32 ? 1e-5 : 0.03;
        const std::string what = concat(c.name, ", no ", name, ", ", dtype);
        expect_near(fused.outputs, expected.outputs, tolerance, what + ": output");
        expect_near(fused.gradients, expected.gradients, tolerance, what + ": gradient");
      }
    }
  }
  RecordProperty("ran", ran);
  RecordProperty("refused", refused);
  EXPECT_GT(ran, 1000);
}

}  // namespace
}  // namespace multihead
