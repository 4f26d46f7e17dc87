// L-BFGS (Liu and Nocedal 1989): the minimum of a smooth function of some thousand numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "multihead/core/threads/parallel.h"

namespace multihead::optim {

struct LbfgsOptions {
  double tolerance = 1e-7;  ///< the search ends where no derivative is larger
  int64_t steps = 5000;     ///< at most
  int64_t history = 10;     ///< differences of gradients that are kept
  /// Polled before each step; once true, the search ends where it is.
  std::function<bool()> should_stop = {};
};

struct LbfgsResult {
  double value = 0;
  double slope = 0;  ///< the largest derivative there, without its sign
  int64_t steps = 0;
  bool converged = false;
};

/// Moves `x` to a minimum. `function` returns the value at a point and writes the derivatives to `gradient`.
/// Deterministic. Throws ValueError (options, nothing to minimise), NumericError (a value that is not finite
/// at the start).
LbfgsResult minimize(std::span<double> x,
                     FunctionRef<double(std::span<const double> point, std::span<double> gradient)> function,
                     const LbfgsOptions& options = {});

}  // namespace multihead::optim
