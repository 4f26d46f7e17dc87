#include "multihead/kernels/amx/precision.h"

#include <atomic>

#include "multihead/core/error.h"
#include "multihead/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace multihead::kernels {
namespace {

std::atomic<MatmulPrecision> chosen{MatmulPrecision::highest};

// The system saves the tile registers (XCR0 bits 17 and 18) and hands them out to processes that ask.
bool read_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;  // OSXSAVE
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d >> 22 & 1) || !(d >> 24 & 1)) return false;                           // AMX-BF16, AMX-TILE
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return false;  // AVX512_BF16, which rounds
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool read_byte_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 25 & 1);  // AMX-INT8
#else
  return false;
#endif
}

constexpr MatmulPrecision kAll[] = {MatmulPrecision::highest, MatmulPrecision::high, MatmulPrecision::medium,
                                    MatmulPrecision::highest_tiles};

}  // namespace

MatmulPrecision float32_matmul_precision() { return chosen; }
void set_float32_matmul_precision(MatmulPrecision precision) { chosen = precision; }

std::string_view precision_name(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::high:
      return "high";
    case MatmulPrecision::medium:
      return "medium";
    case MatmulPrecision::highest_tiles:
      return "highest_tiles";
    default:
      return "highest";
  }
}

MatmulPrecision parse_precision(std::string_view name) {
  for (MatmulPrecision p : kAll) {
    if (name == precision_name(p)) return p;
  }
  MH_CHECK(false, ValueError,
           "float32_matmul_precision: expected highest, high, medium or highest_tiles, got '", name, "'");
  return MatmulPrecision::highest;
}

bool has_tiles() {
  static const bool tiles = read_tiles();
  return tiles && current_isa() == Isa::avx512;
}

bool int8_tiles() {
  static const bool bytes = read_byte_tiles();
  return bytes && has_tiles() && int8_dots();
}

bool bf16_tiles() { return has_tiles() && bf16_dots_allowed(); }

}  // namespace multihead::kernels
