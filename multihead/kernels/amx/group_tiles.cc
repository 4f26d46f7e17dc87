// One tile instruction multiplies a group of 16 rows and 16 columns. Half of what it can do is empty, which
// costs nothing: multiplying the integer sums by their scales takes longer. Those of the groups ahead are on
// their way through tile registers and L1 meanwhile; 16 rows of f32 sums stay in registers.
#include "multihead/kernels/amx/group_tiles-inl.h"

#include <algorithm>

#include "hwy/base.h"
#include "multihead/kernels/amx/tile_target-inl.h"

namespace multihead::kernels {
namespace {

void multiply_emulated(const GroupBlock& b) {
  for (int64_t i = 0; i < kAmxLines; ++i) std::fill_n(b.to + i * b.to_stride, kAmxLines, 0.0f);
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
        b.to[i * b.to_stride + j] += y * b.x_scales[row];
      }
    }
  }
}

}  // namespace

#if MH_TILES
HWY_PUSH_ATTRIBUTES("avx,avx2,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8")
namespace group_tiles {
namespace {

constexpr int kSlots = 4;  // groups of which the loop is unrolled: names of registers are constants
constexpr int kAhead = 3;  // groups from a product to its use, of halves one fewer: twice the registers
template <bool kHalves>
constexpr int64_t kSlotSums = kHalves ? 512 : 256;

enum class Minima { none, exact, rounded };

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

// The names of registers are part of the instructions' text.
#define MH_MULTIPLY(c, a, b)         \
  _tile_zero(c);                     \
  _tile_loadd(a, x, block.x_stride); \
  _tile_loadd(b, y, 64);             \
  _tile_dpbssd(c, a, b);

// Begins the integer sums of a group, or of its halves.
template <bool kHalves, int kSlot>
HWY_INLINE void Begin(const GroupBlock& block, int64_t g) {
  const int8_t *x = block.x + g * kGroupBytes, *y = block.y + g * block.y_group;
  if constexpr (kHalves) {
    const auto next = [&] { x += kGroupBytes / 2, y += kGroupTileBytes / 2; };
    if constexpr (kSlot % 2 == 0) {
      MH_MULTIPLY(0, 4, 6)
      next();
      MH_MULTIPLY(1, 5, 7)
    } else {
      MH_MULTIPLY(2, 4, 6)
      next();
      MH_MULTIPLY(3, 5, 7)
    }
  } else if constexpr (kSlot == 0) {
    MH_MULTIPLY(0, 4, 6)
  } else if constexpr (kSlot == 1) {
    MH_MULTIPLY(1, 5, 7)
  } else if constexpr (kSlot == 2) {
    MH_MULTIPLY(2, 4, 6)
  } else {
    MH_MULTIPLY(3, 5, 7)
  }
}
#undef MH_MULTIPLY

// Stores them in their slot.
template <bool kHalves, int kSlot>
HWY_INLINE void Store(int32_t* sums) {
  int32_t* to = sums + kSlot * kSlotSums<kHalves>;
  if constexpr (kHalves) {
    if constexpr (kSlot % 2 == 0) {
      _tile_stored(0, to, 64);
      _tile_stored(1, to + 256, 64);
    } else {
      _tile_stored(2, to, 64);
      _tile_stored(3, to + 256, 64);
    }
  } else if constexpr (kSlot == 0) {
    _tile_stored(0, to, 64);
  } else if constexpr (kSlot == 1) {
    _tile_stored(1, to, 64);
  } else if constexpr (kSlot == 2) {
    _tile_stored(2, to, 64);
  } else {
    _tile_stored(3, to, 64);
  }
}

HWY_INLINE __m512 LoadSums(const int32_t* from) {
  return __builtin_convertvector(reinterpret_cast<__v16si>(_mm512_load_si512(from)), __v16sf);
}

// Adds a group's scaled sums to those of 8 rows from kRow on.
template <Minima kMinima, bool kHalves, int kSlot, int kRow>
HWY_INLINE void Use(const GroupBlock& b, int64_t g, const int32_t* sums, __m512 (&acc)[16]) {
  __asm__ volatile("" ::: "memory");  // the compiler does not know what the tiles have stored
  const __m512 scale = _mm512_loadu_ps(b.y_scales + 16 * g);
  const __m512 min = kMinima != Minima::none ? _mm512_loadu_ps(b.y_minima + 16 * g) : scale;
  const __m512 first = kHalves ? _mm512_loadu_ps(b.y_halves + 32 * g) : scale,
               second = kHalves ? _mm512_loadu_ps(b.y_halves + 32 * g + 16) : scale;
  const float *x_scales = b.x_scales + 16 * g, *x_sums = b.x_sums + 16 * g;
  const int32_t* own = sums + kSlot * kSlotSums<kHalves>;
#pragma GCC unroll 16
  for (int i = kRow; i < kRow + 8; ++i) {
    __m512 sum = LoadSums(own + 16 * i);
    if constexpr (kHalves) {
      sum = _mm512_fmadd_ps(LoadSums(own + 256 + 16 * i), second, _mm512_mul_ps(sum, first));  // exact
    }
    __m512 y = _mm512_mul_ps(sum, scale);
    if constexpr (kMinima == Minima::exact) y = _mm512_fmadd_ps(min, _mm512_set1_ps(x_sums[i]), y);
    if constexpr (kMinima == Minima::rounded)
      y = _mm512_add_ps(y, _mm512_mul_ps(min, _mm512_set1_ps(x_sums[i])));
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

// A group's sums are stored long after their product began, and one group before their use. Begun and stored
// in one go, products, stores and scaling wait for each other.
template <Minima kMinima, bool kHalves, int kSlot>
HWY_INLINE void Step(const GroupBlock& b, int64_t g, int32_t* sums, __m512 (&acc)[16], Lines& lines) {
  constexpr int kNext = kHalves ? kAhead - 1 : kAhead;
  lines.next();
  if (g + 1 < b.groups) Store<kHalves, (kSlot + 1) % kSlots>(sums);
  Use<kMinima, kHalves, kSlot, 0>(b, g, sums, acc);
  if (g + kNext < b.groups) Begin<kHalves, (kSlot + kNext) % kSlots>(b, g + kNext);
  Use<kMinima, kHalves, kSlot, 8>(b, g, sums, acc);
}

template <Minima kMinima, bool kHalves>
HWY_NOINLINE void Multiply(const GroupBlock& block) {
  const GroupBlock b = block;  // of which tiles that are stored change nothing
  alignas(64) int32_t sums[kSlots * kSlotSums<kHalves>];
  Lines lines(b);
  __m512 acc[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_ps();
  __asm__ volatile("" ::: "memory");
  if (b.groups > 0) Begin<kHalves, 0>(b, 0);
  if (b.groups > 1) Begin<kHalves, 1>(b, 1);
  if (b.groups > 2 && !kHalves) Begin<kHalves, 2>(b, 2);
  if (b.groups > 0) Store<kHalves, 0>(sums);
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
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(b.to + i * b.to_stride, acc[i]);
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
    using group_tiles::Minima;
    if (block.y_halves != nullptr) return group_tiles::Multiply<Minima::none, true>(block);
    if (block.y_minima == nullptr) return group_tiles::Multiply<Minima::none, false>(block);
    return block.short_minima ? group_tiles::Multiply<Minima::exact, false>(block)
                              : group_tiles::Multiply<Minima::rounded, false>(block);
  }
#endif
  multiply_emulated(block);
}

}  // namespace multihead::kernels
