// The parameters of an optimiser: tensors and their names in files and messages.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead::optim {

/// Constructed from a vector of tensors (named "0", "1", …) or of anything with .name and .tensor, such as
/// nn::named_parameters(model).
class ParameterList {
 public:
  struct Item {
    std::string name;
    Tensor tensor;
  };

  /// Throws ValueError (undefined, empty list, the same tensor or name twice), DtypeError unless f32 or f64.
  ParameterList(std::vector<Tensor> tensors);  // NOLINT(google-explicit-constructor)
  ParameterList(std::initializer_list<Tensor> tensors) : ParameterList(std::vector<Tensor>(tensors)) {}

  template <class Named>
  requires requires(const Named& n) {
    std::string(n.name);
    Tensor(n.tensor);
  }
  ParameterList(const std::vector<Named>& parameters) {  // NOLINT(google-explicit-constructor)
    for (const Named& p : parameters) items_.push_back({std::string(p.name), p.tensor});
    check();
  }

  const std::vector<Item>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  const Item& operator[](size_t i) const { return items_[i]; }

 private:
  void check() const;
  std::vector<Item> items_;
};

}  // namespace multihead::optim
