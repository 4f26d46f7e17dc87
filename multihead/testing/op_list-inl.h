// How the cases of op_list.h are written down. Internal to it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/testing/op_list.h"

namespace multihead::testing {

class List {
 public:
  Tensor normal(const Shape& shape) { return randn(shape, rng_, Dtype::f64); }
  // In [0.5, 1.5): away from the poles of log, sqrt and division.
  Tensor positive(const Shape& shape) {
    const Tensor x = Tensor::empty(shape, Dtype::f64);
    fill_uniform(x, 0.5, 1.5, rng_.next());
    return x;
  }
  // At least 0.1 away from zero, where relu bends.
  Tensor bent(const Shape& shape) {
    const Tensor x = normal(shape);
    for (double& v : x.span<double>()) v += v < 0 ? -0.1 : 0.1;
    return x;
  }

  void many(const std::string& op, const std::string& variant, TensorFunction f, std::vector<Tensor> inputs) {
    cases.push_back({op, variant, std::move(f), std::move(inputs)});
    // A case more changes the numbers of the next one alone.
    rng_ = Rng(std::hash<std::string>()(op + variant));
  }
  void one(const std::string& op, const std::string& variant,
           std::function<Tensor(const std::vector<Tensor>&)> f, std::vector<Tensor> inputs) {
    many(
        op, variant, [f = std::move(f)](const std::vector<Tensor>& x) { return std::vector<Tensor>{f(x)}; },
        std::move(inputs));
  }

  std::vector<OpCase> cases;

 private:
  Rng rng_{20240607};
};

/// Everything of ops/attention.
void add_attention_cases(List& list);
/// Everything of ops/array, and linear attention.
void add_array_cases(List& list);

}  // namespace multihead::testing
