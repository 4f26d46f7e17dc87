// A module is a struct with a member `void visit(Visitor&)` that names its parts. Everything else
// (parameters, saving, loading, dtype, counting) is built on it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::nn {

class PackedLinear;

/// Walks a module. A part is a Tensor, a module or a vector of modules; names are joined by dots and vector
/// elements are numbered, as in PyTorch: "layers.0.attention.out_proj.weight".
class Visitor {
 public:
  using Visit = FunctionRef<void(const std::string& name, Tensor& tensor)>;
  explicit Visitor(Visit visit) : visit_(visit) {}
  /// Walks the matrices that can be packed, each with the place for its packed form; nothing else.
  using VisitMatrix = FunctionRef<void(const std::string& name, Tensor& weight, PackedLinear& packed)>;
  static Visitor of_matrices(VisitMatrix visit) {
    Visitor visitor(kNothing);
    visitor.visit_matrix_ = visit;
    return visitor;
  }

  /// Undefined tensors (an absent bias) are skipped.
  void operator()(std::string_view name, Tensor& tensor) {
    if (tensor.defined()) visit_(prefix_ + std::string(name), tensor);
  }

  /// A matrix of which one form is defined.
  void operator()(std::string_view name, Tensor& weight, PackedLinear& packed) {
    if (!visit_matrix_) return (*this)(name, weight);
    (*visit_matrix_)(prefix_ + std::string(name), weight, packed);
  }

  /// Whether it was made by of_matrices().
  bool walks_matrices() const { return visit_matrix_.has_value(); }

  template <class Module>
  void operator()(std::string_view name, Module& module) {
    const size_t length = prefix_.size();
    prefix_.append(name).append(1, '.');
    module.visit(*this);
    prefix_.resize(length);
  }

  template <class Module>
  void operator()(std::string_view name, std::vector<Module>& modules) {
    const size_t length = prefix_.size();
    prefix_.append(name).append(1, '.');
    for (size_t i = 0; i < modules.size(); ++i) (*this)(std::to_string(i), modules[i]);
    prefix_.resize(length);
  }

 private:
  static constexpr auto kNothing = [](const std::string&, Tensor&) {};

  Visit visit_;
  std::optional<VisitMatrix> visit_matrix_;
  std::string prefix_;
};

/// Name and handle of a parameter, in the order of visit().
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

namespace detail {

using VisitModule = FunctionRef<void(Visitor& visitor)>;
std::vector<NamedTensor> named_parameters(VisitModule visit);
void replace_parameters(VisitModule visit, FunctionRef<Tensor(const Tensor& parameter)> convert);
void refuse_packed(VisitModule visit);

}  // namespace detail

/// A shared parameter is listed once, under its first name.
template <class Module>
std::vector<NamedTensor> named_parameters(Module& module) {
  return detail::named_parameters([&](Visitor& visitor) { module.visit(visitor); });
}

template <class Module>
std::vector<Tensor> parameters(Module& module) {
  std::vector<Tensor> result;
  for (NamedTensor& parameter : named_parameters(module)) result.push_back(std::move(parameter.tensor));
  return result;
}

template <class Module>
int64_t parameter_count(Module& module) {
  int64_t count = 0;
  for (const Tensor& parameter : parameters(module)) count += parameter.numel();
  return count;
}

/// Clears the gradients.
void zero_grad(const std::vector<Tensor>& parameters);

/// Copies tensors into the parameters of the same name (dtype converted). One FormatError lists
/// missing, unexpected and mis-shaped names; nothing is changed then.
void load_parameters(const std::vector<NamedTensor>& parameters, const std::map<std::string, Tensor>& tensors,
                     std::string_view source);

/// Replaces every parameter by convert(parameter); sharing is preserved, gradients are cleared.
template <class Module, class Convert>
void replace_parameters(Module& module, Convert&& convert) {
  detail::replace_parameters([&](Visitor& visitor) { module.visit(visitor); }, convert);
}

/// Converts every parameter. Throws ValueError for f64 if weights are packed.
template <class Module>
void to(Module& module, Dtype dtype) {
  if (dtype == Dtype::f64) detail::refuse_packed([&](Visitor& visitor) { module.visit(visitor); });
  replace_parameters(module, [&](const Tensor& parameter) { return parameter.to(dtype); });
}

/// A module with parameters of its own; a plain copy shares them.
template <class Module>
Module clone(const Module& module) {
  Module copy = module;
  replace_parameters(copy, [](const Tensor& parameter) { return parameter.clone(); });
  return copy;
}

}  // namespace multihead::nn
