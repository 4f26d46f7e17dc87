#include "multihead/testing/gradcheck.h"

#include <cmath>
#include <cstring>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"

namespace multihead::testing {
namespace {

// Σ weight ⊙ result over all results, outside any tape.
double weighted_sum(const std::vector<Tensor>& results, uint64_t seed) {
  Rng rng(seed);
  double total = 0;
  for (const Tensor& y : results) {
    const std::vector<double> values = y.to_vector<double>(),
                              weights = randn(y.shape(), rng, Dtype::f64).to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];
  }
  return total;
}

// Gradients of that sum to the inputs for which wanted[i] is set.
std::vector<Tensor> analytic(const TensorFunction& f, const std::vector<Tensor>& inputs,
                             const std::vector<bool>& wanted, uint64_t seed) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) leaves.push_back(inputs[i].clone().set_requires_grad(wanted[i]));
  Tape tape;
  const std::vector<Tensor> results = f(leaves);
  Rng rng(seed);
  // All results meet in one recorded node, so that a single backward seeds them together.
  std::vector<std::shared_ptr<GradientSlot>> slots;
  std::vector<Tensor> weights;
  bool any = false;
  for (const Tensor& y : results) {
    slots.push_back(y.requires_grad() ? y.gradient_slot() : nullptr);
    weights.push_back(randn(y.shape(), rng, Dtype::f64));
    any = any || y.requires_grad();
  }
  const bool all_wanted = std::find(wanted.begin(), wanted.end(), false) == wanted.end();
  MH_CHECK(any || !all_wanted, ValueError, "gradcheck: no result depends on the inputs");
  Tensor loss = Tensor::zeros({}, Dtype::f64);
  tape.add(std::move(slots), {&loss, 1}, [&weights](std::vector<Tensor>) -> Gradients { return weights; });
  if (any) tape.backward(loss);
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < leaves.size(); ++i) {
    gradients.push_back(!wanted[i]                   ? Tensor()
                        : leaves[i].grad().defined() ? leaves[i].grad().contiguous()
                                                     : Tensor::zeros(leaves[i].shape(), Dtype::f64));
  }
  return gradients;
}

double difference(const TensorFunction& f, std::vector<Tensor> inputs, size_t which, int64_t element,
                  double h, uint64_t seed) {
  const NoTape silent;
  inputs[which] = inputs[which].clone();
  double& x = inputs[which].data<double>()[element];
  const double center = x;
  x = center + h;
  const double above = weighted_sum(f(inputs), seed);
  x = center - h;
  const double below = weighted_sum(f(inputs), seed);
  return (above - below) / (2 * h);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && (a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

void fail(GradcheckResult& result, std::string message) {
  if (result.ok) result.message = std::move(message);
  result.ok = false;
}

}  // namespace

GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  for (const Tensor& x : inputs) {
    MH_CHECK(x.dtype() == Dtype::f64 && x.is_contiguous(), DtypeError,
             "gradcheck: inputs must be contiguous f64");
  }
  GradcheckResult result;
  const std::vector<Tensor> gradients =
      analytic(f, inputs, std::vector<bool>(inputs.size(), true), options.seed);
  for (size_t which = 0; which < inputs.size(); ++which) {
    if (gradients[which].shape() != inputs[which].shape()) {
      fail(result, concat("input ", which, " of shape ", inputs[which].shape(), " got a gradient of shape ",
                          gradients[which].shape()));
      return result;
    }
    std::vector<bool> alone(inputs.size(), false);
    alone[which] = true;
    if (!same_bits(analytic(f, inputs, alone, options.seed)[which], gradients[which])) {
      fail(result, concat("the gradient of input ", which, " changes when it is the only one requested"));
    }
    for (int64_t i = 0; i < inputs[which].numel(); ++i) {
      const double coarse = difference(f, inputs, which, i, options.step, options.seed);
      const double fine = difference(f, inputs, which, i, options.step / 2, options.seed);
      const double numeric = (4 * fine - coarse) / 3, got = gradients[which].data<double>()[i];
      const double error = std::abs(got - numeric);
      result.worst = std::max(result.worst, error);
      if (!(error <= options.atol + options.rtol * std::abs(numeric))) {
        fail(result,
             concat("input ", which, " element ", i, ": gradient ", got, ", differences say ", numeric));
      }
    }
  }
  return result;
}

}  // namespace multihead::testing
