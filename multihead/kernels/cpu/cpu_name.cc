#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "multihead/core/error.h"
#include "multihead/kernels/cpu/isa.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace multihead::kernels {
namespace {

#if defined(__x86_64__) || defined(__i386__)
std::string read_cpu_name() {
  unsigned words[12];
  if (static_cast<unsigned>(__get_cpuid_max(0x80000000u, nullptr)) < 0x80000004u) return "";
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* w = words + 4 * leaf;
    __get_cpuid(0x80000002u + leaf, &w[0], &w[1], &w[2], &w[3]);
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  std::string name(text);
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}
#elif defined(__aarch64__) && defined(__linux__)
// Arm's own cores that servers and single-board computers have, by the part number in MIDR_EL1.
struct Core {
  unsigned part;
  const char* name;
};
constexpr Core kCores[] = {
    {0xd03, "Cortex-A53"},  {0xd05, "Cortex-A55"},  {0xd08, "Cortex-A72"},  {0xd0b, "Cortex-A76"},
    {0xd0c, "Neoverse N1"}, {0xd40, "Neoverse V1"}, {0xd49, "Neoverse N2"}, {0xd4f, "Neoverse V2"},
    {0xd84, "Neoverse V3"}, {0xd8e, "Neoverse N3"},
};

std::string read_cpu_name() {
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0)
    return "";  // the system does not let programs read the register
  uint64_t id;
  asm("mrs %0, midr_el1" : "=r"(id));
  const auto maker = static_cast<unsigned>(id >> 24 & 0xFF), part = static_cast<unsigned>(id >> 4 & 0xFFF);
  for (const Core& core : kCores) {
    if (maker == 'A' && part == core.part) return concat("Arm ", core.name);
  }
  char numbers[48];
  std::snprintf(numbers, sizeof(numbers), "ARM, implementer 0x%02x, part 0x%03x", maker, part);
  return numbers;
}
#else
std::string read_cpu_name() { return ""; }
#endif

}  // namespace

std::string_view cpu_name() {
  static const std::string name = read_cpu_name();
  return name.empty() ? "unknown CPU" : std::string_view(name);
}

}  // namespace multihead::kernels
