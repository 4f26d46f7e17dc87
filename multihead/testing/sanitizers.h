// Tests try fewer cases under the sanitizers, which make them ten times slower.
#pragma once

#include <cstdint>

extern "C" void __asan_init() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace multihead::testing {

/// Whether the address sanitizer is linked: objects of tests serve builds with and without it.
inline const bool kSanitized = &__asan_init != nullptr;

/// Long lists of random cases are tried in steps of this: for (seed = 1; seed <= 250; seed += kCaseStep).
inline const uint32_t kCaseStep = kSanitized ? 7 : 1;

}  // namespace multihead::testing
