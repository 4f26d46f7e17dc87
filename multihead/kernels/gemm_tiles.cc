// A number is x = x1 + x2 + x3, each part bf16, each the rest of the parts before rounded to nearest even:
//   1 product   x1 y1
//   3 products  x1 y1 + x1 y2 + x2 y1
//   6 products  … + x1 y3 + x2 y2 + x3 y1
// all into the same f32 sums. A tile of C is 16 x 16, an instruction adds 32 products to each of its
// elements; four tiles of C share two of A and two of B. Both operands are packed: A by 16 rows, B by 16
// columns with neighbours in k side by side, 32 of k after the other, the parts of one step together.
//
// Blocks of 1024 in k; C is loaded and stored once for each.
//
// The tile instructions have not been run: no machine that this was written on has them. What the tests
// check is everything around them, with loops in their place that follow their published description.
#include "multihead/kernels/gemm_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/scratch.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define MH_TILES 1
#include <immintrin.h>
#else
#define MH_TILES 0
#endif

namespace multihead::kernels {
namespace {

constexpr int64_t kTile = 16, kStep = 32;  // rows and columns; k of one instruction
constexpr int64_t kTileWords = kTile * kStep;
constexpr int64_t kBlockK = 1024, kBlockN = 1024, kBlockM = 128;
constexpr int kMostParts = 3;

struct PartPair {
  int a, b;
};
constexpr PartPair kPairs[] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1}, {2, 0}};

struct Scheme {
  int parts, products;
};

Scheme scheme_of(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::medium:
      return {1, 1};
    case MatmulPrecision::high:
      return {2, 3};
    default:
      return {3, 6};
  }
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// parts[0 … count) with x ≈ their sum. Inf and NaN have one part, or Inf - Inf would arise; a finite number
// that rounds to Inf is cut off instead.
void split(float x, int count, uint16_t* parts) {
  for (int i = 0; i < count; ++i) {
    uint16_t part = BFloat16(x).bits;
    if ((part & 0x7F80) == 0x7F80) {
      const bool finite = (bits_of(x) & 0x7F800000) != 0x7F800000;
      if (finite) part = static_cast<uint16_t>(bits_of(x) >> 16);
      parts[i] = part;
      if (!finite) {
        std::fill(parts + i + 1, parts + count, uint16_t{0});
        return;
      }
    }
    parts[i] = part;
    x -= std::bit_cast<float>(uint32_t{part} << 16);
  }
}

// `strips` strips of 16 rows of A: [strip][step][part][16 rows][32 of k].
// Or of 16 columns of B: [strip][step][part][16 pairs of k][16 columns][2]. Zeros beyond the ends.
template <bool kIsB, class Element>
void pack(int64_t strips, int64_t lines, int64_t count, const Scheme& s, const Element& element,
          uint16_t* to) {
  const int64_t steps = (count + kStep - 1) / kStep;
  for (int64_t strip = 0; strip < strips; ++strip) {
    for (int64_t step = 0; step < steps; ++step, to += s.parts * kTileWords) {
      for (int64_t i = 0; i < kTile; ++i) {
        for (int64_t j = 0; j < kStep; ++j) {
          const int64_t line = strip * kTile + i, k = step * kStep + j;
          uint16_t parts[kMostParts] = {};
          if (line < lines && k < count) split(element(line, k), s.parts, parts);
          const int64_t at = kIsB ? (j / 2 * kTile + i) * 2 + j % 2 : i * kStep + j;
          for (int p = 0; p < s.parts; ++p) to[p * kTileWords + at] = parts[p];
        }
      }
    }
  }
}

// c[32][32] += the product of two strips of A and two of B.
struct TileWork {
  const uint16_t* a[2];
  const uint16_t* b[2];
  int64_t steps;
  Scheme scheme;
  float* c;  // [2 * kTile][2 * kTile]
};

// What the instruction does to one tile of C: even and odd k have a sum each, which are added in the end;
// numbers below the smallest normal count as zero.
void emulate_tile(const uint16_t* a, const uint16_t* b, float* c, int64_t c_stride) {
  const auto value = [](uint16_t x) {
    return (x & 0x7F80) == 0 ? 0.0f : std::bit_cast<float>(uint32_t{x} << 16);
  };
  const auto flushed = [](float x) { return std::abs(x) < 0x1p-126f ? 0.0f : x; };
  for (int64_t m = 0; m < kTile; ++m) {
    float even[kTile] = {}, odd[kTile] = {};
    for (int64_t k = 0; k < kStep / 2; ++k) {
      const float a0 = value(a[m * kStep + 2 * k]), a1 = value(a[m * kStep + 2 * k + 1]);
      for (int64_t n = 0; n < kTile; ++n) {  // a product of two bf16 is exact in f32
        even[n] = flushed(even[n] + a0 * value(b[(k * kTile + n) * 2]));
        odd[n] = flushed(odd[n] + a1 * value(b[(k * kTile + n) * 2 + 1]));
      }
    }
    for (int64_t n = 0; n < kTile; ++n) {
      float& sum = c[m * c_stride + n];
      sum = flushed(sum + flushed(even[n] + odd[n]));
    }
  }
}

void multiply_emulated(const TileWork& w) {
  for (int64_t step = 0; step < w.steps; ++step) {
    for (int p = 0; p < w.scheme.products; ++p) {
      const int64_t at_a = (step * w.scheme.parts + kPairs[p].a) * kTileWords;
      const int64_t at_b = (step * w.scheme.parts + kPairs[p].b) * kTileWords;
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
          emulate_tile(w.a[i] + at_a, w.b[j] + at_b, w.c + i * kTile * 2 * kTile + j * kTile, 2 * kTile);
        }
      }
    }
  }
}

#if MH_TILES
__attribute__((target("amx-tile"))) void configure_tiles() {
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;
  for (int t = 0; t < 8; ++t) {
    config[16 + 2 * t] = 64;  // bytes of a row
    config[48 + t] = 16;      // rows
  }
  _tile_loadconfig(config);
}

__attribute__((target("amx-tile"))) void release_tiles() { _tile_release(); }

__attribute__((target("amx-tile,amx-bf16"))) void multiply_amx(const TileWork& w) {
  constexpr int64_t kRow = 2 * kTile * 4;  // bytes
  float* c = w.c;
  __asm__ volatile("" ::: "memory");  // the intrinsics do not tell the compiler what they read and write
  _tile_loadd(0, c, kRow);
  _tile_loadd(1, c + kTile, kRow);
  _tile_loadd(2, c + kTile * 2 * kTile, kRow);
  _tile_loadd(3, c + kTile * 2 * kTile + kTile, kRow);
  for (int64_t step = 0; step < w.steps; ++step) {
    for (int p = 0; p < w.scheme.products; ++p) {
      const int64_t at_a = (step * w.scheme.parts + kPairs[p].a) * kTileWords;
      const int64_t at_b = (step * w.scheme.parts + kPairs[p].b) * kTileWords;
      _tile_loadd(4, w.a[0] + at_a, 64);
      _tile_loadd(6, w.b[0] + at_b, 64);
      _tile_loadd(7, w.b[1] + at_b, 64);
      _tile_loadd(5, w.a[1] + at_a, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kRow);
  _tile_stored(1, c + kTile, kRow);
  _tile_stored(2, c + kTile * 2 * kTile, kRow);
  _tile_stored(3, c + kTile * 2 * kTile + kTile, kRow);
  __asm__ volatile("" ::: "memory");
}
#else
void configure_tiles() {}
void release_tiles() {}
void multiply_amx(const TileWork& w) { multiply_emulated(w); }
#endif

thread_local Scratch shared_scratch;   // packed B
thread_local Scratch private_scratch;  // this thread's packed A

constexpr int64_t even_strips(int64_t lines) { return (lines + 2 * kTile - 1) / (2 * kTile) * 2; }

// Rows and columns of C to do, and where in k.
struct Block {
  int64_t n, columns, k, count;
};

void multiply_rows(const GemmArgs<float>& g, const Scheme& s, TileUnit unit, const Block& block,
                   const uint16_t* packed_b, int64_t row) {
  const int64_t rows = std::min(kBlockM, g.m - row), steps = (block.count + kStep - 1) / kStep;
  const int64_t strip = steps * s.parts * kTileWords, strips = even_strips(rows);
  auto* packed_a = private_scratch.get<uint16_t>(static_cast<size_t>(strips * strip));
  const int64_t a_row = g.ta == Transpose::yes ? 1 : g.lda, a_k = g.ta == Transpose::yes ? g.lda : 1;
  const float* a = g.a + row * a_row + block.k * a_k;
  pack<false>(
      strips, rows, block.count, s, [&](int64_t i, int64_t k) { return a[i * a_row + k * a_k]; }, packed_a);
  const bool add = g.accumulate || block.k > 0;
  if (unit == TileUnit::amx) configure_tiles();
  for (int64_t j = 0; j < block.columns; j += 2 * kTile) {
    for (int64_t i = 0; i < rows; i += 2 * kTile) {
      alignas(64) float sums[4 * kTile * kTile] = {};
      const int64_t height = std::min(2 * kTile, rows - i), width = std::min(2 * kTile, block.columns - j);
      float* c = g.c + (row + i) * g.ldc + block.n + j;
      for (int64_t r = 0; add && r < height; ++r) std::copy_n(c + r * g.ldc, width, sums + r * 2 * kTile);
      const uint16_t* pa = packed_a + i / kTile * strip;
      const uint16_t* pb = packed_b + j / kTile * strip;
      const TileWork work{{pa, pa + strip}, {pb, pb + strip}, steps, s, sums};
      unit == TileUnit::amx ? multiply_amx(work) : multiply_emulated(work);
      for (int64_t r = 0; r < height; ++r) std::copy_n(sums + r * 2 * kTile, width, c + r * g.ldc);
    }
  }
  if (unit == TileUnit::amx) release_tiles();
}

}  // namespace

bool tiles_pay(const GemmArgs<float>& g) { return g.m >= 32 && g.n >= 32 && g.k >= 64; }

void gemm_on_tiles(const GemmArgs<float>& g, MatmulPrecision precision, TileUnit unit) {
  const Scheme s = scheme_of(precision);
  const int64_t b_column = g.tb == Transpose::yes ? g.ldb : 1, b_k = g.tb == Transpose::yes ? 1 : g.ldb;
  for (int64_t n = 0; n < g.n; n += kBlockN) {
    for (int64_t k = 0; k < g.k; k += kBlockK) {
      const Block block{n, std::min(kBlockN, g.n - n), k, std::min(kBlockK, g.k - k)};
      const int64_t steps = (block.count + kStep - 1) / kStep, strips = even_strips(block.columns);
      const int64_t strip = steps * s.parts * kTileWords;
      auto* packed_b = shared_scratch.get<uint16_t>(static_cast<size_t>(strips * strip));
      const float* b = g.b + n * b_column + k * b_k;
      parallel_for(strips, [&](int64_t i, int) {
        const float* first = b + i * kTile * b_column;
        pack<true>(
            1, std::clamp<int64_t>(block.columns - i * kTile, 0, kTile), block.count, s,
            [&](int64_t line, int64_t at) { return first[line * b_column + at * b_k]; },
            packed_b + i * strip);
      });
      parallel_for((g.m + kBlockM - 1) / kBlockM,
                   [&](int64_t i, int) { multiply_rows(g, s, unit, block, packed_b, i * kBlockM); });
    }
  }
}

}  // namespace multihead::kernels
