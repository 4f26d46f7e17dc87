// What the reader and the writer of sentence-transformers' modules share with those who run them. Private to embed/.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "multihead/core/tensor/tensor.h"

namespace multihead::embed::detail {

inline std::string joined(const std::string& folder, const std::string& part) {
  return part.empty() ? folder : (std::filesystem::path(folder) / part).string();
}

/// A function of Dense modules: where torch has it, and ours.
struct DenseFunction {
  std::string path;
  std::function<Tensor(const Tensor&)> function;
  Tensor operator()(const Tensor& x) const { return function(x); }
};
/// By torch.nn's names.
const std::map<std::string, DenseFunction>& dense_functions();

}  // namespace multihead::embed::detail
