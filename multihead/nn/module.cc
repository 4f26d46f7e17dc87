#include "multihead/nn/module.h"

#include <set>

#include "multihead/autograd/pending-inl.h"
#include "multihead/core/error.h"
#include "multihead/core/text/near_names.h"
#include "multihead/core/text/utf8.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::nn {

std::vector<NamedTensor> detail::named_parameters(VisitModule visit) {
  std::vector<NamedTensor> result;
  auto add = [&](const std::string& name, Tensor& tensor) {
    for (const NamedTensor& known : result) {
      if (known.tensor.is_same(tensor)) return;
      MH_CHECK(known.name != name, ValueError, "named_parameters: two parameters are called ", quote(name),
               "; visit() must give every part a name of its own");
    }
    result.push_back({name, tensor});
  };
  Visitor visitor(add);
  visit(visitor);
  return result;
}

void detail::replace_parameters(VisitModule visit, FunctionRef<Tensor(const Tensor& parameter)> convert) {
  std::vector<std::pair<Tensor, Tensor>> replaced;
  auto replace = [&](const std::string&, Tensor& tensor) {
    for (const auto& [before, after] : replaced) {
      if (before.is_same(tensor)) tensor = after;
      if (after.is_same(tensor)) return;
    }
    Tensor after = convert(tensor);
    after.set_requires_grad(tensor.requires_grad());
    replaced.emplace_back(tensor, after);
    tensor = after;
  };
  Visitor visitor(replace);
  visit(visitor);
}

void detail::refuse_packed(VisitModule visit) {
  const auto check = [](const std::string& name, Tensor&, const PackedLinear& packed) {
    MH_CHECK(!packed.defined(), ValueError, "to: ", name,
             " is packed and multiplies f32 and 16-bit numbers; a model with packed weights cannot be f64");
  };
  Visitor visitor = Visitor::of_matrices(check);
  visit(visitor);
}

void zero_grad(const std::vector<Tensor>& parameters) {
  for (const Tensor& parameter : parameters) {
    if (parameter.requires_grad()) parameter.set_grad({});
  }
}

void load_parameters(const std::vector<NamedTensor>& parameters, const std::map<std::string, Tensor>& tensors,
                     std::string_view source) {
  multihead::detail::refuse_pending_backward(source);
  std::string problems;
  std::set<std::string> expected;
  for (const auto& parameter : parameters) expected.insert(parameter.name);
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : tensors) {
    if (!expected.contains(name)) unexpected.push_back(name);
  }
  NearNames hint(unexpected);
  for (const auto& [name, tensor] : parameters) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      problems += concat("\n  missing ", name, " ", tensor.shape(), hint(name));
    } else if (found->second.shape() != tensor.shape()) {
      problems += concat("\n  ", name, ": expected ", tensor.shape(), ", got ", found->second.shape());
    }
  }
  for (const std::string& name : unexpected) {
    problems += concat("\n  unexpected ", name, " ", tensors.at(name).shape());
  }
  MH_CHECK(problems.empty(), FormatError, source, ": the tensors do not fit the model:", problems);
  for (const auto& [name, tensor] : parameters) tensor.copy_from(tensors.at(name));
}

}  // namespace multihead::nn
