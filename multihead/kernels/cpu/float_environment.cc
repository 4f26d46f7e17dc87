#include "multihead/kernels/cpu/float_environment-inl.h"

#include "multihead/core/threads/float_mode-inl.h"

namespace multihead::kernels {
namespace {

// Default: to nearest, subnormals kept, no traps. What is not part of the setting (on x86 the exceptions that happened) is
// left out of comparisons.
#if defined(__x86_64__)
constexpr unsigned kSetting = ~0x3Fu, kDefault = 0x1F80;
#else
constexpr unsigned kSetting = ~0u, kDefault = 0;
#endif

bool is_default(unsigned value) { return (value & kSetting) == kDefault; }

}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(float_control()) {
  if (!is_default(saved_)) set_float_control(kDefault);
}

FloatEnvironment::~FloatEnvironment() {
  if (!is_default(saved_)) set_float_control(saved_);
}

}  // namespace multihead::kernels
