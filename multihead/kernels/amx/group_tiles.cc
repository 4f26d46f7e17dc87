// One tile instruction multiplies a group of 16 rows and 16 columns. Half of what it can do is empty, which
// costs nothing: multiplying the integer sums by their scales takes longer. Those of two groups ahead are on
// their way through L1 meanwhile; 16 rows of f32 sums stay in registers.
#include "multihead/kernels/amx/group_tiles-inl.h"

#include <algorithm>

#include "hwy/base.h"
#include "multihead/kernels/amx/tile_target-inl.h"

namespace multihead::kernels {
namespace {

void multiply_emulated(const GroupBlock& b) {
  std::fill_n(b.to, kAmxLines * kAmxLines, 0.0f);
  for (int64_t g = 0; g < b.groups; ++g) {
    const int8_t* w = b.y + g * b.y_group;
    for (int64_t i = 0; i < kAmxLines; ++i) {
      const int8_t* x = b.x + i * b.x_stride + g * kGroupBytes;
      const int64_t row = g * kAmxLines + i;
      for (int64_t j = 0; j < kAmxLines; ++j) {
        const int64_t column = g * kAmxLines + j;
        int32_t sums[2] = {};
        for (int64_t k = 0; k < kGroupBytes; ++k) sums[k / 16] += x[k] * w[k / 4 * 64 + 4 * j + k % 4];
        for (int64_t h = 0; h < 2 && b.y_halves != nullptr; ++h)
          sums[h] *= static_cast<int32_t>(b.y_halves[2 * g * kAmxLines + h * kAmxLines + j]);
        float y = static_cast<float>(sums[0] + sums[1]) * b.y_scales[column];
        if (b.y_minima != nullptr) y += b.y_minima[column] * b.x_sums[row];
        b.to[i * kAmxLines + j] += y * b.x_scales[row];
      }
    }
  }
}

}  // namespace

#if MH_TILES
HWY_PUSH_ATTRIBUTES("avx,avx2,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8")
namespace group_tiles {
namespace {

constexpr int kSlots = 4;  // sums of groups on their way through L1
constexpr int64_t kAhead = 2;
template <bool kHalves>
constexpr int64_t kSlotSums = kHalves ? 512 : 256;

void Configure(bool halves) {
  const int bytes = halves ? kGroupBytes / 2 : kGroupBytes;
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;
  for (int t = 0; t < 8; ++t) {
    config[16 + 2 * t] = static_cast<uint8_t>(t == 4 || t == 5 ? bytes : 64);  // of a row: X has few,
    config[48 + t] = static_cast<uint8_t>(t >= 6 ? bytes / 4 : 16);            // Y few rows
  }
  __asm__ volatile("" ::"m"(config) : "memory");
  _tile_loadconfig(config);
}

void Release() { _tile_release(); }

// Stores the integer sums of a group, or of its halves, in its slot. The names of registers are part of the instructions' text.
#define MH_ISSUE(c, a, b)    \
  _tile_zero(c);             \
  _tile_loadd(a, x, stride); \
  _tile_loadd(b, y, 64);     \
  _tile_dpbssd(c, a, b);     \
  _tile_stored(c, to, 64);

template <bool kHalves, int kSlot>
HWY_INLINE void Issue(const GroupBlock& of, int64_t g, int32_t* sums) {
  const int8_t *x = of.x + g * kGroupBytes, *y = of.y + g * of.y_group;
  const int64_t stride = of.x_stride;
  int32_t* to = sums + kSlot * kSlotSums<kHalves>;
  if constexpr (kHalves) {
    const auto next = [&] { x += kGroupBytes / 2, y += kGroupTileBytes / 2, to += 256; };
    if constexpr (kSlot % 2 == 0) {
      MH_ISSUE(0, 4, 6)
      next();
      MH_ISSUE(1, 5, 7)
    } else {
      MH_ISSUE(2, 4, 6)
      next();
      MH_ISSUE(3, 5, 7)
    }
  } else if constexpr (kSlot == 0) {
    MH_ISSUE(0, 4, 6)
  } else if constexpr (kSlot == 1) {
    MH_ISSUE(1, 5, 7)
  } else if constexpr (kSlot == 2) {
    MH_ISSUE(2, 4, 6)
  } else {
    MH_ISSUE(3, 5, 7)
  }
}
#undef MH_ISSUE

HWY_INLINE __m512 LoadSums(const int32_t* from) {
  return __builtin_convertvector(reinterpret_cast<__v16si>(_mm512_load_si512(from)), __v16sf);
}

template <bool kMinima, bool kHalves, int kSlot>
HWY_INLINE void Use(const GroupBlock& b, int64_t g, const int32_t* sums, __m512 (&acc)[16]) {
  __asm__ volatile("" ::: "memory");  // the compiler does not know what the tiles have stored
  const __m512 scale = _mm512_loadu_ps(b.y_scales + 16 * g);
  const __m512 min = kMinima ? _mm512_loadu_ps(b.y_minima + 16 * g) : scale;
  const __m512 first = kHalves ? _mm512_loadu_ps(b.y_halves + 32 * g) : scale,
               second = kHalves ? _mm512_loadu_ps(b.y_halves + 32 * g + 16) : scale;
  const float *x_scales = b.x_scales + 16 * g, *x_sums = b.x_sums + 16 * g;
  const int32_t* own = sums + kSlot * kSlotSums<kHalves>;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    __m512 sum = LoadSums(own + 16 * i);
    if constexpr (kHalves) {
      sum = _mm512_fmadd_ps(LoadSums(own + 256 + 16 * i), second, _mm512_mul_ps(sum, first));  // exact
    }
    __m512 y = _mm512_mul_ps(sum, scale);
    if constexpr (kMinima) y = _mm512_add_ps(y, _mm512_mul_ps(min, _mm512_set1_ps(x_sums[i])));
    acc[i] = _mm512_add_ps(acc[i], _mm512_mul_ps(y, _mm512_set1_ps(x_scales[i])));
  }
}

// Lines on their way to L2, a share of them at each group.
struct Lines {
  const char* at;
  int64_t left, share;

  explicit Lines(const GroupBlock& b)
      : at(b.fetch), left(b.fetch_lines), share((b.fetch_lines + b.groups - 1) / b.groups) {}
  HWY_INLINE void next() {
    for (int64_t n = std::min(left, share); n > 0; --n, --left, at += 64) _mm_prefetch(at, _MM_HINT_T1);
  }
};

template <bool kMinima, bool kHalves, int kSlot>
HWY_INLINE void Step(const GroupBlock& b, int64_t g, int32_t* sums, __m512 (&acc)[16], Lines& lines) {
  lines.next();
  if (g + kAhead < b.groups) Issue<kHalves, (kSlot + kAhead) % kSlots>(b, g + kAhead, sums);
  Use<kMinima, kHalves, kSlot>(b, g, sums, acc);
}

template <bool kMinima, bool kHalves>
HWY_NOINLINE void Multiply(const GroupBlock& b) {
  alignas(64) int32_t sums[kSlots * kSlotSums<kHalves>];
  Lines lines(b);
  __m512 acc[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_ps();
  __asm__ volatile("" ::: "memory");
  if (b.groups > 0) Issue<kHalves, 0>(b, 0, sums);
  if (b.groups > 1) Issue<kHalves, 1>(b, 1, sums);
  int64_t g = 0;
  for (; g + kSlots <= b.groups; g += kSlots) {
    Step<kMinima, kHalves, 0>(b, g, sums, acc, lines);
    Step<kMinima, kHalves, 1>(b, g + 1, sums, acc, lines);
    Step<kMinima, kHalves, 2>(b, g + 2, sums, acc, lines);
    Step<kMinima, kHalves, 3>(b, g + 3, sums, acc, lines);
  }
  if (g < b.groups) Step<kMinima, kHalves, 0>(b, g, sums, acc, lines);
  if (g + 1 < b.groups) Step<kMinima, kHalves, 1>(b, g + 1, sums, acc, lines);
  if (g + 2 < b.groups) Step<kMinima, kHalves, 2>(b, g + 2, sums, acc, lines);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(b.to + i * kAmxLines, acc[i]);
}

}  // namespace
}  // namespace group_tiles
HWY_POP_ATTRIBUTES
#endif

GroupTiles::GroupTiles(TileUnit unit, [[maybe_unused]] bool halves) : unit_(unit) {
#if MH_TILES
  if (unit_ == TileUnit::amx) group_tiles::Configure(halves);
#endif
}

GroupTiles::~GroupTiles() {
#if MH_TILES
  if (unit_ == TileUnit::amx) group_tiles::Release();
#endif
}

void GroupTiles::multiply(const GroupBlock& block) const {
#if MH_TILES
  if (unit_ == TileUnit::amx) {
    if (block.y_halves != nullptr) return group_tiles::Multiply<false, true>(block);
    return block.y_minima != nullptr ? group_tiles::Multiply<true, false>(block)
                                     : group_tiles::Multiply<false, false>(block);
  }
#endif
  multiply_emulated(block);
}

}  // namespace multihead::kernels
