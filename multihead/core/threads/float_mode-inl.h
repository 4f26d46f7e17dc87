// How a thread rounds and whether it takes subnormal numbers for zeros: a region computes on every thread as its caller
// would, or its bits would depend on who takes which index.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace multihead {

/// The control register of vector arithmetic; kFloatMode: its bits that say how to round and whether to flush.
#if defined(__x86_64__)
constexpr unsigned kFloatMode = 0xE040;
inline unsigned float_control() { return _mm_getcsr(); }
inline void set_float_control(unsigned value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
constexpr unsigned kFloatMode = 0x1C80000;
inline unsigned float_control() {  // GCC has a function for it, Clang has not
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<unsigned>(value);
}
inline void set_float_control(unsigned value) { asm volatile("msr fpcr, %0" : : "r"(uint64_t{value})); }
#else
constexpr unsigned kFloatMode = 0;
inline unsigned float_control() { return 0; }
inline void set_float_control(unsigned) {}
#endif

struct FloatMode {
  unsigned bits = 0;

  /// This thread's.
  static FloatMode now() { return {float_control() & kFloatMode}; }
  /// Makes it this thread's, whose exceptions stay masked or not as they are.
  void apply() const {
    const unsigned value = float_control();
    if ((value & kFloatMode) != bits) set_float_control((value & ~kFloatMode) | bits);
  }
};

}  // namespace multihead
