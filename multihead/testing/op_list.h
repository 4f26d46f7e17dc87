// Every differentiable op with inputs to check its gradient on. ops/gradient_test.cc runs them all and fails
// for a public op that has no entry.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "multihead/testing/gradcheck.h"

namespace multihead::testing {

struct OpCase {
  std::string op;       ///< the function's name in multihead/ops/*.h
  std::string variant;  ///< what is special about this case
  TensorFunction f;
  std::vector<Tensor> inputs;
  GradcheckOptions options = {};

  friend std::ostream& operator<<(std::ostream& out, const OpCase& c) {
    return out << c.op << ", " << c.variant;
  }
};

struct OpResults {
  std::vector<Tensor> outputs, gradients;
};

std::vector<OpCase> op_cases();

/// The case with sizes of zero: one for each size among its inputs, whose axes of that size all become empty,
/// since they are likely the same. Some do not fit what the op gets besides, and throw.
std::vector<OpCase> emptied(const OpCase& c);

}  // namespace multihead::testing
