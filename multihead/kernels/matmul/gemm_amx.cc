// Products on bf16 tiles (see amx-inl.h). An f32 C is loaded and stored once for each kBlockK of k, a bf16 C
// rounded from sums over all of k.
//
// The second part of a number that is not finite is not a number. In products of several parts such numbers
// are left out of the tiles and their products added afterwards, so that Inf and NaN arise where IEEE
// arithmetic has them.
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "multihead/core/parallel.h"
#include "multihead/kernels/matmul/blocking-inl.h"
#include "multihead/kernels/matmul/packed_linear_half.h"
#include "multihead/kernels/matmul/packed_linear_panels-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kBlockK = 1024, kBlockM = 128;
constexpr int64_t kPackedB = 1 << 23;  // words
constexpr int64_t kPair = 2 * kAmxLines;

// An operand by (line, k): a line is a row of A or a column of B.
struct Lines {
  const float* wide;
  const BFloat16* narrow;
  int64_t line_stride, k_stride;

  float at(int64_t line, int64_t k) const { return wide[line * line_stride + k * k_stride]; }
  AmxOperand part(int64_t line, int64_t lines, int64_t k, int64_t count) const {
    const int64_t first = line * line_stride + k * k_stride;
    const bool bf16 = narrow != nullptr;
    const void* data = bf16 ? static_cast<const void*>(narrow + first) : wide + first;
    return {data, bf16, line_stride, k_stride, lines, count};
  }
};

struct Run {
  const EngineArgs& g;
  PartScheme scheme;
  TileUnit unit;
  Lines a{g.a, g.a16, g.ta == Transpose::yes ? 1 : g.lda, g.ta == Transpose::yes ? g.lda : 1};
  Lines b{g.b, g.b16, g.tb == Transpose::yes ? g.ldb : 1, g.tb == Transpose::yes ? 1 : g.ldb};
  NotFinite rule = a.narrow != nullptr || b.narrow != nullptr ? NotFinite::keep : NotFinite::zero;
};

// Some of k, and the columns of C whose part of B is packed at once.
struct Chunk {
  int64_t n, columns, k, count;
  const uint16_t* packed = nullptr;
  bool not_finite = false;
};

// c += the products that have a factor which is not finite: all that the tiles left out.
void add_not_finite(const Run& r, const Chunk& chunk, const Block& c) {
  for (int64_t k = chunk.k; k < chunk.k + chunk.count; ++k) {
    for (int64_t j = c.column; j < c.column + c.columns; ++j) {
      const float b = r.b.at(j, k);
      const bool all = !std::isfinite(b);
      for (int64_t i = c.row; i < c.row + c.rows; ++i) {
        const float a = r.a.at(i, k);
        if (all || !std::isfinite(a)) r.g.c[i * r.g.ldc + j] += a * b;
      }
    }
  }
}

// The sums of a block of C, two by two tiles at a time; p.a and p.b are its first strips. Tiles beyond the
// ends of C, and those of a bf16 C, which is finished here, are summed beside it.
void multiply_tiles(const EngineArgs& g, const Block& block, const AmxProduct& strips, TileUnit unit) {
  alignas(64) float sums[kPair * kPair];
  for (int64_t j = 0; j < block.columns; j += kPair) {
    for (int64_t i = 0; i < block.rows; i += kPair) {
      const int64_t height = std::min(kPair, block.rows - i), width = std::min(kPair, block.columns - j);
      const int64_t row = block.row + i, column = block.column + j;
      AmxProduct p = amx_from(strips, i / kAmxLines, j / kAmxLines);
      p.a_strips = amx_strips(height), p.b_strips = amx_strips(width);
      float* c = g.c16 != nullptr ? nullptr : g.c + row * g.ldc + column;
      const bool in_place = c != nullptr && height % kAmxLines == 0 && width % kAmxLines == 0;
      p.c = in_place ? c : sums, p.c_stride = in_place ? g.ldc : kPair;
      if (p.add && !in_place) {
        std::fill_n(sums, kPair * kPair, 0.0f);
        for (int64_t r = 0; r < height; ++r) std::copy_n(c + r * g.ldc, width, sums + r * kPair);
      }
      amx_multiply(p, unit);
      if (g.c16 != nullptr) {
        finish_block(g, {row, height, column, width, sums, kPair});
      } else if (!in_place) {
        for (int64_t r = 0; r < height; ++r) std::copy_n(sums + r * kPair, width, c + r * g.ldc);
      }
    }
  }
}

void multiply_block(const Run& r, const Chunk& chunk, const Block& c) {
  const int64_t steps = amx_steps(chunk.count), strip = steps * r.scheme.parts * kAmxWords;
  auto* a = private_scratch.get<uint16_t>(static_cast<size_t>(amx_strips(c.rows) * strip));
  const AmxOperand rows = r.a.part(c.row, c.rows, chunk.k, chunk.count);
  const bool not_finite = amx_pack(rows, AmxSide::rows, r.scheme.parts, r.rule, a) || chunk.not_finite;
  const AmxRegisters registers(r.unit == TileUnit::amx);
  multiply_tiles(r.g, c,
                 {.a = a,
                  .b = chunk.packed + (c.column - chunk.n) / kAmxLines * strip,
                  .a_strip = strip,
                  .b_strip = strip,
                  .steps = steps,
                  .scheme = r.scheme,
                  .add = r.g.accumulate || chunk.k > 0},
                 r.unit);
  if (not_finite && r.rule == NotFinite::zero) add_not_finite(r, chunk, c);
  if (r.g.c16 == nullptr && chunk.k + chunk.count == r.g.k) finish_block(r.g, c);
}

// B is packed strip by strip, then C multiplied in blocks of rows and, if those are too few for the threads,
// groups of columns.
void multiply_chunk(const Run& r, Chunk chunk, int threads) {
  const auto share = [&](int64_t count, auto body) {
    if (threads > 1) return parallel_for(count, [&](int64_t i, int) { body(i); });
    for (int64_t i = 0; i < count; ++i) body(i);
  };
  const int64_t strips = amx_strips(chunk.columns);
  const int64_t strip = amx_steps(chunk.count) * r.scheme.parts * kAmxWords;
  auto* packed = shared_scratch.get<uint16_t>(static_cast<size_t>(strips * strip));
  std::atomic<bool> not_finite{false};
  share(strips, [&](int64_t i) {
    const int64_t first = i * kAmxLines, count = std::min(kAmxLines, chunk.columns - first);
    const AmxOperand columns = r.b.part(chunk.n + first, count, chunk.k, chunk.count);
    if (amx_pack(columns, AmxSide::columns, r.scheme.parts, r.rule, packed + i * strip)) not_finite = true;
  });
  chunk.packed = packed, chunk.not_finite = not_finite;
  const int64_t blocks = ceil_div(r.g.m, kBlockM), pairs = ceil_div(chunk.columns, kPair);
  const int64_t groups = std::min(ceil_div(threads == 1 ? 1 : kTasksPerThread * threads, blocks), pairs);
  share(blocks * groups, [&](int64_t task) {
    const int64_t row = task / groups * kBlockM, group = task % groups;
    const int64_t first = pairs * group / groups * kPair;
    const int64_t last = std::min(pairs * (group + 1) / groups * kPair, chunk.columns);
    multiply_block(r, chunk, {row, std::min(kBlockM, r.g.m - row), chunk.n + first, last - first});
  });
}

}  // namespace

bool tiles_pay(const GemmArgs<float>& g) { return g.m >= 32 && g.n >= 32 && g.k >= 64; }

void gemm_on_tiles(const EngineArgs& g, PartScheme scheme, TileUnit unit) {
  const Run run{g, scheme, unit};
  const int threads = 2 * g.m * g.n * g.k < kSerialFlops ? 1 : num_threads();
  const int64_t chunk_k = g.c16 != nullptr ? g.k : std::min(g.k, kBlockK);
  const int64_t chunk_n = std::max(kPackedB / (chunk_k * scheme.parts) / kPair, int64_t{1}) * kPair;
  for (int64_t n = 0; n < g.n; n += chunk_n) {
    for (int64_t k = 0; k < g.k; k += chunk_k) {
      multiply_chunk(run, {n, std::min(chunk_n, g.n - n), k, std::min(chunk_k, g.k - k)}, threads);
    }
  }
}

// A panel of a packed weight is read by tiles where it lies; of its last step, if that is not whole, a copy
// padded with zeros.
void packed_linear_on_tiles(const PackedLinearArgs& p, TileUnit unit) {
  const EngineArgs g{epilogue_of(p)};
  const int64_t steps = amx_steps(p.in), strip = steps * kAmxWords, pairs = ceil_div(p.in, 2);
  const int64_t whole = pairs / (kAmxStep / 2) * (kAmxStep / 2);
  auto* a = shared_scratch.get<uint16_t>(static_cast<size_t>(amx_strips(p.rows) * strip));
  const Lines x{p.x, nullptr, p.ldx, 1};
  const auto pack = [&](int64_t begin, int64_t end) {
    const AmxOperand rows = x.part(begin, end - begin, 0, p.in);
    amx_pack(rows, AmxSide::rows, 1, NotFinite::keep, a + begin / kAmxLines * strip);
  };
  share_rows(p, pack, kAmxLines);
  share_panels(p, ceil_div(p.out, half::kColumns), kSerialFlops, [&](int64_t begin, int64_t end) {
    const AmxRegisters registers(unit == TileUnit::amx);
    for (int64_t i = begin; i < end; ++i) {
      const half::Place panel(i * half::kColumns, p.out);
      const auto* words = static_cast<const uint16_t*>(p.packed) + panel.first(p.in);
      const int64_t row = 2 * panel.width;
      alignas(64) uint16_t last[kAmxStep / 2 * 2 * half::kColumns] = {};
      std::copy(words + whole * row, words + pairs * row, last);
      const Block block{0, p.rows, panel.panel, std::min(half::kColumns, p.out - panel.panel)};
      multiply_tiles(g, block,
                     {.a = a,
                      .b = words,
                      .a_strip = strip,
                      .b_strip = kAmxStep,
                      .b_step = kAmxStep / 2 * row,
                      .b_row = row,
                      .b_last = whole < pairs ? last : nullptr,
                      .steps = steps},
                     unit);
      finish_block(g, block);
    }
  });
}

}  // namespace multihead::kernels
