// Sizes, operands and results that several tests of attention share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "multihead/ops/shape.h"

namespace multihead {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2;

struct Operands {
  Tensor q, k, v, d_out;
};

struct Result {
  Tensor out, lse;
  std::vector<Tensor> gradients;
};

inline Tensor ints(std::initializer_list<int64_t> values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

// x[:, :, begin:end, :]
inline Tensor tokens(const Tensor& x, int64_t begin, int64_t end) { return slice(x, 2, begin, end); }

}  // namespace multihead
