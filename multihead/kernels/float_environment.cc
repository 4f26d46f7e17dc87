#include "multihead/kernels/float_environment.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace multihead::kernels {

#if defined(__x86_64__)

namespace {
constexpr unsigned kFlags = 0x3F, kDefault = 0x1F80;  // exceptions that happened; all masked, nearest, no FTZ
}

FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) {
  if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
}

FloatEnvironment::~FloatEnvironment() {
  if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
}

#else

FloatEnvironment::FloatEnvironment() = default;
FloatEnvironment::~FloatEnvironment() = default;

#endif

}  // namespace multihead::kernels
