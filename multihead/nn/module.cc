#include "multihead/nn/module.h"

#include <set>

#include "multihead/core/error.h"

namespace multihead::nn {

void load_parameters(const std::vector<NamedTensor>& parameters, const std::map<std::string, Tensor>& tensors,
                     std::string_view source) {
  std::string problems;
  std::set<std::string> expected;
  for (const auto& [name, tensor] : parameters) {
    expected.insert(name);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      problems += concat("\n  missing ", name, " ", tensor.shape());
    } else if (found->second.shape() != tensor.shape()) {
      problems += concat("\n  ", name, ": expected ", tensor.shape(), ", got ", found->second.shape());
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (expected.count(name) == 0) problems += concat("\n  unexpected ", name, " ", tensor.shape());
  }
  MH_CHECK(problems.empty(), FormatError, source, ": the tensors do not fit the model:", problems);
  for (const auto& [name, tensor] : parameters) tensor.copy_from(tensors.at(name));
}

}  // namespace multihead::nn
