// The floating-point mode that kernels compute in, whatever the caller's thread has set.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__FAST_MATH__)
#error "NaN, Inf and the order of additions mean something here: compile without -ffast-math"
#endif

namespace multihead::kernels {

/// Default rounding, no flushing of denormals, no traps, while alive; then the caller's mode again.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatEnvironment() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3F, kDefault = 0x1F80;
  unsigned saved_;
#else
  FloatEnvironment() {}
#endif

 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace multihead::kernels
