// How long something takes, whatever else the machine does.
#pragma once

#include <ctime>

#include "multihead/testing/sanitizers.h"

namespace multihead::testing {

inline const double kSlowdown = kSanitized ? 10 : 1;

/// Seconds that processors spend in this process during f().
template <class F>
double processor_seconds(F&& f) {
  const std::clock_t start = std::clock();
  f();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace multihead::testing
