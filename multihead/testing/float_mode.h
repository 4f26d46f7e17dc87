// Floating-point modes that a caller of the library may have set.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace multihead::testing {

#if defined(__x86_64__)
inline unsigned float_control() { return _mm_getcsr(); }
inline void set_float_control(unsigned value) { _mm_setcsr(value); }
constexpr unsigned kFloatModes[] = {0x8040u, 0x2000u, 0x4000u, 0x6000u};  // FTZ + DAZ, down, up, towards zero
constexpr unsigned kFloatModeBits = 0xE040u;
#elif defined(__aarch64__)
inline unsigned float_control() { return __builtin_aarch64_get_fpcr(); }
inline void set_float_control(unsigned value) { __builtin_aarch64_set_fpcr(value); }
constexpr unsigned kFloatModes[] = {1u << 24, 2u << 22, 1u << 22, 3u << 22};  // FZ, down, up, towards zero
constexpr unsigned kFloatModeBits = 7u << 22;
#endif

/// Sets `mode` (0: leaves the thread's own) and gives back what was there before.
class FloatModeScope {
 public:
  explicit FloatModeScope(unsigned mode) : saved_(float_control()) {
    if (mode != 0) set_float_control((saved_ & ~kFloatModeBits) | mode);
    set_ = float_control() & kFloatModeBits;
  }
  ~FloatModeScope() { set_float_control(saved_); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

  /// Nobody has changed the mode since.
  bool untouched() const { return (float_control() & kFloatModeBits) == set_; }

 private:
  unsigned saved_, set_;
};

}  // namespace multihead::testing
