// What tests do less of under the sanitizers, which make them ten times slower.
#pragma once

#include <cstdint>

namespace multihead::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Of long lists of random cases, every how many are tried: for (seed = 1; seed <= 250; seed += kCaseStep).
inline constexpr uint32_t kCaseStep = kSanitized ? 7 : 1;

}  // namespace multihead::testing
