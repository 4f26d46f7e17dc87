// What the checks of both kinds of models compare with.
#pragma once

#include <cmath>
#include <cstring>

#include "multihead/core/parallel.h"
#include "multihead/core/tensor.h"

namespace multihead::train {

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

inline double largest_difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (!(difference <= largest)) largest = difference;  // keeps NaN
  }
  return largest;
}

struct ThreadScope {
  ~ThreadScope() { set_num_threads(before); }
  int before = num_threads();
};

}  // namespace multihead::train
