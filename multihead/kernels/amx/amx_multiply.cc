// Tile products: four tiles of C share two of A and two of B; and the same by plain loops.
#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/amx/tile_emulation-inl.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define MH_TILES 1
#include <immintrin.h>
#else
#define MH_TILES 0
#endif

namespace multihead::kernels {
namespace {

struct PartPair {
  int a, b;
};
constexpr PartPair kPairs[] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1}, {2, 0}};

const uint16_t* step_of_b(const AmxProduct& p, int64_t step) {
  return p.b_last != nullptr && step + 1 == p.steps ? p.b_last : p.b + step * p.b_step;
}

// `rows` x `columns` tiles of C, each 1 or 2.
void multiply_emulated(const AmxProduct& p, int rows, int columns) {
  for (int64_t i = 0; !p.add && i < rows * kAmxLines; ++i) {
    for (int64_t j = 0; j < columns * kAmxLines; ++j) p.c[i * p.c_stride + j] = 0;
  }
  for (int64_t step = 0; step < p.steps; ++step) {
    for (int n = 0; n < p.scheme.products; ++n) {
      const uint16_t* a = p.a + (step * p.scheme.parts + kPairs[n].a) * kAmxWords;
      const uint16_t* b = step_of_b(p, step) + kPairs[n].b * kAmxWords;
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; ++j) {
          emulate_tile(a + i * p.a_strip, 64, b + j * p.b_strip, 2 * p.b_row,
                       p.c + i * kAmxLines * p.c_stride + j * kAmxLines, p.c_stride);
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
  __asm__ volatile("" ::"m"(config) : "memory");  // the intrinsics do not tell the compiler what they read
  _tile_loadconfig(config);
}

__attribute__((target("amx-tile"))) void release_tiles() { _tile_release(); }

// Registers 0-3: C, 4-5: A, 6-7: B.
template <int kRows, int kColumns>
__attribute__((target("amx-tile,amx-bf16"))) void multiply_amx(const AmxProduct& p) {
  const int64_t row = p.c_stride * 4, b_row = p.b_row * 2;  // bytes
  float* c = p.c;
  float* d = c + kAmxLines * p.c_stride;
  __asm__ volatile("" ::: "memory");
  if (p.add) {
    _tile_loadd(0, c, row);
    if constexpr (kColumns == 2) _tile_loadd(1, c + kAmxLines, row);
    if constexpr (kRows == 2) _tile_loadd(2, d, row);
    if constexpr (kRows == 2 && kColumns == 2) _tile_loadd(3, d + kAmxLines, row);
  } else {
    _tile_zero(0);
    if constexpr (kColumns == 2) _tile_zero(1);
    if constexpr (kRows == 2) _tile_zero(2);
    if constexpr (kRows == 2 && kColumns == 2) _tile_zero(3);
  }
  for (int64_t step = 0; step < p.steps; ++step) {
    for (int n = 0; n < p.scheme.products; ++n) {
      const uint16_t* a = p.a + (step * p.scheme.parts + kPairs[n].a) * kAmxWords;
      const uint16_t* b = step_of_b(p, step) + kPairs[n].b * kAmxWords;
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, b_row);
      if constexpr (kColumns == 2) _tile_loadd(7, b + p.b_strip, b_row);
      if constexpr (kRows == 2) _tile_loadd(5, a + p.a_strip, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kColumns == 2) _tile_dpbf16ps(1, 4, 7);
      if constexpr (kRows == 2) _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRows == 2 && kColumns == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, row);
  if constexpr (kColumns == 2) _tile_stored(1, c + kAmxLines, row);
  if constexpr (kRows == 2) _tile_stored(2, d, row);
  if constexpr (kRows == 2 && kColumns == 2) _tile_stored(3, d + kAmxLines, row);
  __asm__ volatile("" ::: "memory");
}

void multiply_on_cpu(const AmxProduct& p, int rows, int columns) {
  if (rows == 2) return columns == 2 ? multiply_amx<2, 2>(p) : multiply_amx<2, 1>(p);
  columns == 2 ? multiply_amx<1, 2>(p) : multiply_amx<1, 1>(p);
}
#else
void configure_tiles() {}
void release_tiles() {}
void multiply_on_cpu(const AmxProduct& p, int rows, int columns) { multiply_emulated(p, rows, columns); }
#endif

}  // namespace

PartScheme part_scheme(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::medium:
      return {1, 1};
    case MatmulPrecision::high:
      return {2, 3};
    default:
      return {3, 6};
  }
}

AmxRegisters::AmxRegisters(bool wanted) : wanted_(wanted) {
  if (wanted_) configure_tiles();
}

AmxRegisters::~AmxRegisters() {
  if (wanted_) release_tiles();
}

AmxProduct amx_from(const AmxProduct& product, int64_t i, int64_t j) {
  AmxProduct p = product;
  p.a += i * p.a_strip, p.b += j * p.b_strip;
  if (p.b_last != nullptr) p.b_last += j * p.b_strip;
  return p;
}

void amx_multiply(const AmxProduct& product, TileUnit unit) {
  for (int64_t j = 0; j < product.b_strips; j += 2) {
    for (int64_t i = 0; i < product.a_strips; i += 2) {
      AmxProduct p = amx_from(product, i, j);
      if (p.b_row == 0) p.b_row = kAmxStep, p.b_step = p.scheme.parts * kAmxWords;
      p.c = product.c + i * kAmxLines * p.c_stride + j * kAmxLines;
      const int rows = i + 1 < product.a_strips ? 2 : 1, columns = j + 1 < product.b_strips ? 2 : 1;
      unit == TileUnit::amx ? multiply_on_cpu(p, rows, columns) : multiply_emulated(p, rows, columns);
    }
  }
}

}  // namespace multihead::kernels
