#include "multihead/kernels/cpu/float_environment-inl.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace multihead::kernels {
namespace {

// The control register of vector arithmetic. Default: to nearest, subnormals kept, no traps. What is not part
// of the setting (on x86 the exceptions that happened) is left out of comparisons.
#if defined(__x86_64__)
constexpr unsigned kSetting = ~0x3Fu, kDefault = 0x1F80;
unsigned control() { return _mm_getcsr(); }
void set_control(unsigned value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
constexpr unsigned kSetting = ~0u, kDefault = 0;
unsigned control() {  // GCC has a function for it, Clang has not
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<unsigned>(value);
}
void set_control(unsigned value) { asm volatile("msr fpcr, %0" : : "r"(uint64_t{value})); }
#else
constexpr unsigned kSetting = 0, kDefault = 0;
unsigned control() { return 0; }
void set_control(unsigned) {}
#endif

bool is_default(unsigned value) { return (value & kSetting) == kDefault; }

}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(control()) {
  if (!is_default(saved_)) set_control(kDefault);
}

FloatEnvironment::~FloatEnvironment() {
  if (!is_default(saved_)) set_control(saved_);
}

}  // namespace multihead::kernels
