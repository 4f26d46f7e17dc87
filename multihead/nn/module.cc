#include "multihead/nn/module.h"

#include <set>

#include "multihead/core/error.h"
#include "multihead/core/near_names-inl.h"

namespace multihead::nn {

void load_parameters(const std::vector<NamedTensor>& parameters, const std::map<std::string, Tensor>& tensors,
                     std::string_view source) {
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
