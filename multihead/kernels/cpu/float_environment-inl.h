// The floating-point mode that kernels compute in, whatever the caller's thread has set.
#pragma once

#if defined(__FAST_MATH__)
#error "NaN, Inf and the order of additions mean something here: compile without -ffast-math"
#endif

namespace multihead::kernels {

/// Default rounding, no flushing of denormals, no traps, while alive; then the caller's mode again.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace multihead::kernels
