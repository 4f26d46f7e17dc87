// How a thread rounds and whether it takes subnormal numbers for zeros: a region computes on every thread as its caller
// would, or its bits would depend on who takes which index.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace multihead {

struct FloatMode {
  uint64_t bits = 0;

#if defined(__x86_64__)
  static constexpr uint64_t kBits = 0xE040;  // of MXCSR: flush to zero, rounding, denormals are zeros
  static uint64_t all() { return _mm_getcsr(); }
  static void set_all(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kBits = 0x1C80000;  // of FPCR: flush to zero, rounding, the same of 16 bits
  static uint64_t all() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_all(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static constexpr uint64_t kBits = 0;
  static uint64_t all() { return 0; }
  static void set_all(uint64_t) {}
#endif

  /// This thread's.
  static FloatMode now() { return {all() & kBits}; }
  /// Makes it this thread's, whose exceptions stay masked or not as they are.
  void apply() const {
    if (const uint64_t value = all(); (value & kBits) != bits) set_all((value & ~kBits) | bits);
  }
};

}  // namespace multihead
