// How long something takes, whatever else the machine does.
#pragma once

#include <ctime>

namespace multihead::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr double kSlowdown = 10;  // of sanitizers
#else
inline constexpr double kSlowdown = 1;
#endif

/// Seconds that processors spend in this process during f().
template <class F>
double processor_seconds(F&& f) {
  const std::clock_t start = std::clock();
  f();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace multihead::testing
