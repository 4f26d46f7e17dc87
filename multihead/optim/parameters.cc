#include "multihead/optim/parameters.h"

#include <set>

#include "multihead/core/error.h"

namespace multihead::optim {

ParameterList::ParameterList(std::vector<Tensor> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) items_.push_back({std::to_string(i), std::move(tensors[i])});
  check();
}

void ParameterList::check() const {
  MH_CHECK(!items_.empty(), ValueError, "optimizer: no parameters");
  std::set<std::string> names;
  std::set<const void*> memory;
  for (const Item& item : items_) {
    MH_CHECK(item.tensor.defined(), ValueError, "optimizer: parameter ", item.name, " is undefined");
    MH_CHECK(item.tensor.dtype() == Dtype::f32 || item.tensor.dtype() == Dtype::f64, DtypeError,
             "optimizer: parameter ", item.name, " must be f32 or f64, got ", item.tensor.dtype());
    MH_CHECK(item.tensor.is_contiguous(), ValueError, "optimizer: parameter ", item.name,
             " must be contiguous");
    MH_CHECK(names.insert(item.name).second, ValueError, "optimizer: two parameters are called ", item.name);
    MH_CHECK(item.tensor.numel() == 0 || memory.insert(item.tensor.raw()).second, ValueError,
             "optimizer: parameter ", item.name, " is listed twice");
  }
}

}  // namespace multihead::optim
