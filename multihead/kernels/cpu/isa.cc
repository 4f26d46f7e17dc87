#include "multihead/kernels/cpu/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "hwy/targets.h"
#include "multihead/core/error.h"

namespace multihead::kernels {
namespace {

// Targets of one Isa and everything older. HWY_TARGETS is what this build generates code for.
int64_t targets_up_to(Isa isa) {
  int64_t above = 0;
#if HWY_ARCH_X86
  if (isa < Isa::avx512) above |= HWY_AVX3 | HWY_AVX3_DL;
  if (isa < Isa::avx2) above |= HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
#else
  static_cast<void>(isa);
#endif
  return ~above;
}

Isa best_of(int64_t targets) {
#if HWY_ARCH_X86
  if (targets & HWY_TARGETS & HWY_AVX3) return Isa::avx512;
  if (targets & HWY_TARGETS & HWY_AVX2) return Isa::avx2;
#elif HWY_ARCH_ARM_A64
  if (targets & HWY_NEON) return Isa::neon;
#endif
  static_cast<void>(targets);
  return Isa::baseline;
}

bool is_known(Isa isa) { return std::find(kIsas.begin(), kIsas.end(), isa) != kIsas.end(); }

std::string known_names() {
  std::string names;
  for (const Isa isa : kIsas) names += concat(names.empty() ? "" : ", ", isa_name(isa));
  return names;
}

// The best one up to `isa` that was built; a build for one machine has not all (MULTIHEAD_TARGETS).
Isa cap(Isa isa) {
  hwy::DisableTargets(~targets_up_to(isa));
  const int64_t targets = hwy::SupportedTargets();  // which chooses from all that the CPU has
  hwy::GetChosenTarget().Update(targets);
  return std::min(isa, best_of(targets));
}

bool parse(std::string_view name, Isa& isa) {
  for (const Isa candidate : kIsas) {
    if (name == isa_name(candidate)) {
      isa = candidate;
      return true;
    }
  }
  return false;
}

// Runs before main so that the first kernel call is capped already. A bad value cannot be reported from here;
// current_isa() does that.
struct Setting {
  Isa best = best_of(hwy::SupportedTargets());
#if HWY_ARCH_X86
  bool lacks_vectors = best == Isa::baseline && (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0;
#else
  bool lacks_vectors = false;
#endif
  std::atomic<Isa> current{best};
  std::string bad_value;

  Setting() {
    const char* value = std::getenv("MULTIHEAD_ISA");
    if (value == nullptr || *value == '\0') return;
    Isa wanted;
    if (!parse(value, wanted)) {
      bad_value = value;
    } else if (wanted < best) {
      current = cap(wanted);
    }
  }
};

Setting& setting() {
  static Setting instance;
  return instance;
}

[[maybe_unused]] const Setting& kBeforeMain = setting();

bool read_fast_dots() {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return false;
  char vendor[12];
  if (!__get_cpuid(0, &a, &b, &c, &d)) return false;
  std::memcpy(vendor, &b, 4), std::memcpy(vendor + 4, &d, 4), std::memcpy(vendor + 8, &c, 4);
  return std::memcmp(vendor, "AuthenticAMD", sizeof(vendor)) == 0;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return true;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

bool read_int8_dots() {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1);
#elif defined(__ARM_FEATURE_DOTPROD)
  return true;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

bool read_int8_squares() {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return true;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
  return false;
#endif
}

// Where dots are.
#if HWY_ARCH_X86
constexpr Isa kDotsIsa = Isa::avx512;
#else
constexpr Isa kDotsIsa = Isa::neon;
#endif

std::atomic<bool> dots_allowed{true}, int8_dots_allowed{true};

}  // namespace

Isa best_isa() { return setting().best; }

Isa current_isa() {
  const Setting& s = setting();
  MH_CHECK(s.bad_value.empty(), ValueError, "MULTIHEAD_ISA: expected one of ", known_names(), ", got '",
           s.bad_value, "'");
  return s.current;
}

void set_isa(Isa isa) {
  MH_CHECK(is_known(isa) && isa <= best_isa(), ValueError, "set_isa: this CPU has no ", isa_name(isa),
           ", its best is ", isa_name(best_isa()));
  setting().current = cap(isa);
  setting().bad_value.clear();
}

bool bf16_dots() {
  static const bool fast = read_fast_dots();
  return fast && dots_allowed && current_isa() == kDotsIsa;
}

void set_bf16_dots(bool allowed) { dots_allowed = allowed; }
bool bf16_dots_allowed() { return dots_allowed; }

bool int8_dots() {
  static const bool known = read_int8_dots();
  return known && int8_dots_allowed && current_isa() == kDotsIsa;
}

bool int8_squares() {
  static const bool known = read_int8_squares();
  return known && int8_dots();
}

void set_int8_dots(bool allowed) { int8_dots_allowed = allowed; }

std::string missing_vectors() {
  if (!setting().lacks_vectors) return "";
  return "multihead was compiled for another CPU alone and has no vector code for this one: everything takes "
         "many times as long; install it here, or with MULTIHEAD_TARGETS=all";
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::neon:
      return "neon";
    default:
      return "baseline";
  }
}

Isa parse_isa(std::string_view name) {
  Isa isa;
  MH_CHECK(parse(name, isa), ValueError, "parse_isa: expected one of ", known_names(), ", got '", name, "'");
  return isa;
}

}  // namespace multihead::kernels
