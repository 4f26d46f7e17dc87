// The bf16 yardstick. Highway 1.0.3 knows neither dots nor squares nor tiles, so this file uses intrinsics, functions
// compiled for their target, and checks of its own for what the CPU has and the system allows.
#include <cstdint>

#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/peak/peak.h"
#include "multihead/kernels/simd/arm_numbers.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace multihead::kernels {
namespace {

#if defined(__x86_64__) || defined(__aarch64__)

volatile float sink;

// Pseudo-random bf16 numbers in ±[0.5, 1): the speed of some CPUs depends on how many bits change.
void fill(uint16_t* x, int count) {
  uint32_t state = 12345;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3f00);
  }
}

template <class Burst>
double rate(double flops, double seconds, Burst burst) {
  const double start = thread_seconds();
  double done = 0, elapsed = 0;
  do {
    sink = burst();
    done += flops;
    elapsed = thread_seconds() - start;
  } while (elapsed < seconds);
  return 1e-9 * done / elapsed;
}

#endif

#if defined(__x86_64__)

bool has_dots() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

// 24 independent chains hide a latency of 6 on two units. Flops per step: 16 lanes of two products each.
constexpr int kChains = 24, kDotSteps = 8192;
constexpr double kDotFlops = double{kDotSteps} * kChains * 16 * 2 * 2;

__attribute__((target("avx512f,avx512bf16"))) float dot_burst() {
  alignas(64) uint16_t x[64];
  fill(x, 64);
  const __m512i left = _mm512_load_si512(x), right = _mm512_load_si512(x + 32);
  __m512bh a, b;
  __builtin_memcpy(&a, &left, sizeof(a));
  __builtin_memcpy(&b, &right, sizeof(b));
  __m512 chain[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i)
    chain[i] = _mm512_set1_ps(0.01f * static_cast<float>(i));  // all different
  for (int step = 0; step < kDotSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) chain[i] = _mm512_dpbf16_ps(chain[i], a, b);
  }
#pragma GCC unroll 24
  for (int i = 1; i < kChains; ++i) chain[0] = _mm512_add_ps(chain[0], chain[i]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, chain[0]);
  __asm__ volatile("" ::: "memory");  // or the compiler takes all bursts for one
  return lanes[0];
}

// Tiles of 16 rows of 64 bytes: four sums, two operands a side.
constexpr int kTileSteps = 2048;
constexpr double kTileFlops = double{kTileSteps} * 4 * 16 * 16 * 32 * 2;

__attribute__((target("amx-tile,amx-bf16"))) float tile_burst() {
  alignas(64) uint16_t x[4][512];
  fill(x[0], 4 * 512);
  alignas(64) float out[256];
  const AmxRegisters registers(true);
  __asm__ volatile("" ::"m"(x) : "memory");  // GCC 12 does not say that tiles are loaded from memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, x[0], 64);
  _tile_loadd(5, x[1], 64);
  _tile_loadd(6, x[2], 64);
  _tile_loadd(7, x[3], 64);
  for (int step = 0; step < kTileSteps; ++step) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, 64);
  __asm__ volatile("" ::: "memory");  // GCC 12 does not say that a tile is stored to memory
  return out[0];
}

#elif defined(__aarch64__)

// Two rows times two columns of four values each; 24 chains as of dots.
constexpr int kChains = 24, kSquareSteps = 8192;
constexpr double kSquareFlops = double{kSquareSteps} * kChains * 2 * 2 * 4 * 2;

float square_burst() {
  uint16_t x[16];
  fill(x, 16);
  const uint16x8_t a = vld1q_u16(x), b = vld1q_u16(x + 8);
  float32x4_t chain[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) chain[i] = vdupq_n_f32(0.01f * static_cast<float>(i));  // all different
  for (int step = 0; step < kSquareSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i)
      __asm__ volatile(MH_NUMBERED "0x6e40ec00" : "+w"(chain[i]) : "w"(a), "w"(b));
  }
#pragma GCC unroll 24
  for (int i = 1; i < kChains; ++i) chain[0] = vaddq_f32(chain[0], chain[i]);
  return vgetq_lane_f32(chain[0], 0);
}

#endif

}  // namespace

std::string_view bf16_unit() {
#if defined(__x86_64__)
  static const bool dots = has_dots();
  if (has_tiles()) return "tiles";
  if (dots && current_isa() >= Isa::avx512) return "dots";
  return "";
#else
  return bf16_dots() ? "squares" : "";
#endif
}

double bf16_gflops(double seconds) {
  [[maybe_unused]] const std::string_view unit = bf16_unit();
#if defined(__x86_64__)
  if (unit == "tiles") return rate(kTileFlops, seconds, tile_burst);
  if (unit == "dots") return rate(kDotFlops, seconds, dot_burst);
#elif defined(__aarch64__)
  if (unit == "squares") return rate(kSquareFlops, seconds, square_burst);
#endif
  static_cast<void>(seconds);
  return 0;
}

}  // namespace multihead::kernels
