// f32 products on bf16 tiles (see amx-inl.h). Blocks of 1024 in k; C is loaded and stored once for each.
//
// Numbers that are not finite are left out of the tiles; their products are added afterwards, so that Inf and
// NaN arise where IEEE arithmetic has them.
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "multihead/core/parallel.h"
#include "multihead/kernels/cpu/scratch-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kBlockK = 1024, kBlockN = 1024, kBlockM = 128;
constexpr int64_t kPair = 2 * kAmxLines;

thread_local Scratch shared_scratch;   // packed B
thread_local Scratch private_scratch;  // this thread's packed A

// Columns of C to do, and where in k.
struct Block {
  int64_t n, columns, k, count;
};

// Both operands by (row or column, k).
struct Operands {
  const float* a;
  const float* b;
  int64_t a_row, a_k, b_column, b_k;

  explicit Operands(const GemmArgs<float>& g)
      : a(g.a),
        b(g.b),
        a_row(g.ta == Transpose::yes ? 1 : g.lda),
        a_k(g.ta == Transpose::yes ? g.lda : 1),
        b_column(g.tb == Transpose::yes ? g.ldb : 1),
        b_k(g.tb == Transpose::yes ? 1 : g.ldb) {}
  float a_at(int64_t i, int64_t k) const { return a[i * a_row + k * a_k]; }
  float b_at(int64_t k, int64_t j) const { return b[j * b_column + k * b_k]; }
};

// c += the products that have a factor which is not finite: all that the tiles left out.
void add_not_finite(const GemmArgs<float>& g, const Block& block, int64_t row, int64_t rows) {
  const Operands o(g);
  for (int64_t k = block.k; k < block.k + block.count; ++k) {
    for (int64_t j = block.n; j < block.n + block.columns; ++j) {
      const float b = o.b_at(k, j);
      const bool all = !std::isfinite(b);
      for (int64_t i = row; i < row + rows; ++i) {
        const float a = o.a_at(i, k);
        if (all || !std::isfinite(a)) g.c[i * g.ldc + j] += a * b;
      }
    }
  }
}

struct PackedB {
  const uint16_t* words;
  bool not_finite;
};

void multiply_rows(const GemmArgs<float>& g, const PartScheme& s, TileUnit unit, const Block& block,
                   const PackedB& b, int64_t row) {
  const Operands o(g);
  const int64_t rows = std::min(kBlockM, g.m - row), steps = amx_steps(block.count);
  const int64_t strip = steps * s.parts * kAmxWords, strips = amx_strips(rows);
  auto* a = private_scratch.get<uint16_t>(static_cast<size_t>(strips * strip));
  const AmxOperand from{o.a + row * o.a_row + block.k * o.a_k, false, o.a_row, o.a_k, rows, block.count};
  const bool not_finite = amx_pack(from, AmxSide::rows, s.parts, NotFinite::zero, a) || b.not_finite;
  const AmxRegisters registers(unit == TileUnit::amx);
  const bool add = g.accumulate || block.k > 0;
  AmxProduct p{.a_strip = strip, .b_strip = strip, .steps = steps, .scheme = s};
  for (int64_t j = 0; j < block.columns; j += kPair) {
    for (int64_t i = 0; i < rows; i += kPair) {
      alignas(64) float sums[kPair * kPair];
      const int64_t height = std::min(kPair, rows - i), width = std::min(kPair, block.columns - j);
      float* c = g.c + (row + i) * g.ldc + block.n + j;
      p.a = a + i / kAmxLines * strip, p.b = b.words + j / kAmxLines * strip;
      p.a_strips = amx_strips(height), p.b_strips = amx_strips(width), p.add = add;
      p.c = c, p.c_stride = g.ldc;
      const bool whole = height % kAmxLines == 0 && width % kAmxLines == 0;
      if (!whole) {
        p.c = sums, p.c_stride = kPair;
        if (add) std::fill_n(sums, kPair * kPair, 0.0f);
        for (int64_t r = 0; add && r < height; ++r) std::copy_n(c + r * g.ldc, width, sums + r * kPair);
      }
      amx_multiply(p, unit);
      for (int64_t r = 0; !whole && r < height; ++r) std::copy_n(sums + r * kPair, width, c + r * g.ldc);
    }
  }
  if (not_finite) add_not_finite(g, block, row, rows);
}

}  // namespace

bool tiles_pay(const GemmArgs<float>& g) { return g.m >= 32 && g.n >= 32 && g.k >= 64; }

void gemm_on_tiles(const GemmArgs<float>& g, MatmulPrecision precision, TileUnit unit) {
  const PartScheme s = part_scheme(precision);
  const Operands o(g);
  for (int64_t n = 0; n < g.n; n += kBlockN) {
    for (int64_t k = 0; k < g.k; k += kBlockK) {
      const Block block{n, std::min(kBlockN, g.n - n), k, std::min(kBlockK, g.k - k)};
      const int64_t strips = amx_strips(block.columns);
      const int64_t strip = amx_steps(block.count) * s.parts * kAmxWords;
      auto* packed = shared_scratch.get<uint16_t>(static_cast<size_t>(strips * strip));
      const float* b = o.b + n * o.b_column + k * o.b_k;
      std::atomic<bool> not_finite{false};
      parallel_for(strips, [&](int64_t i, int) {
        const AmxOperand from{b + i * kAmxLines * o.b_column,
                              false,
                              o.b_column,
                              o.b_k,
                              std::min(kAmxLines, block.columns - i * kAmxLines),
                              block.count};
        if (amx_pack(from, AmxSide::columns, s.parts, NotFinite::zero, packed + i * strip)) not_finite = true;
      });
      parallel_for((g.m + kBlockM - 1) / kBlockM, [&](int64_t i, int) {
        multiply_rows(g, s, unit, block, {packed, not_finite}, i * kBlockM);
      });
    }
  }
}

}  // namespace multihead::kernels
