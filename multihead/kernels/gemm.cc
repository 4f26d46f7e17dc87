// C = op(A)·op(B) by register tiles (gemm_tile-inl.h) over packed panels of B (gemm_pack-inl.h).
//
// Loops, outer to inner: chunks of k and n whose packed B stays below kPackedFloats; blocks of kBlockRows
// rows (the tasks); blocks of k, so that a panel and a block of A live in L2; panels; tiles down the rows. A
// row-major A is read in place, a transposed one is packed block by block by the task that uses it.
#include "multihead/kernels/gemm.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/parallel.h"
#include "multihead/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/gemm_pack-inl.h"
#include "multihead/kernels/gemm_tile-inl.h"

#ifndef MULTIHEAD_KERNELS_GEMM_ONCE
#define MULTIHEAD_KERNELS_GEMM_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kBlockFloats = 1 << 17;    // of A that one task multiplies at once: half of an L2
constexpr int64_t kBlockK = 512;             // longest block of k
constexpr int64_t kChunkK = 2048;            // of k packed at once
constexpr int64_t kPackedFloats = 1 << 22;   // of B packed at once
constexpr int64_t kSerialFlops = 2'000'000;  // below, starting threads costs more than it saves

thread_local Scratch shared_scratch;   // packed B, read by every thread of one product
thread_local Scratch private_scratch;  // this thread's packed A

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x > 0 ? x : 0.0f;
    case Activation::gelu:
      return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    case Activation::gelu_tanh:
      return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

using Args = GemmArgs<float>;

// Columns of C in panels of at most kMaxVectors vectors, as equal as possible.
struct Panels {
  Panels(int64_t begin, int64_t end)
      : first(begin),
        columns(end - begin),
        vectors(ceil_div(columns, kLanes)),
        count(ceil_div(vectors, kMaxVectors)) {}
  int64_t vector(int64_t panel) const { return vectors * panel / count; }
  int width(int64_t panel) const { return static_cast<int>(vector(panel + 1) - vector(panel)); }
  int max_width() const { return static_cast<int>(ceil_div(vectors, count)); }

  int64_t first, columns, vectors, count;
};

// Where a block of rows of op(A) is read from.
struct RowsOfA {
  const float* data;
  int64_t stride;
  bool row_major;
  int64_t sliver;  // distance between packed slivers, 0 if A is in place

  const float* at(int64_t row) const {
    if (sliver != 0) return data + row / kSliverRows * sliver + row % kSliverRows;
    return data + (row_major ? row * stride : row);
  }
};

using TileFunction = void (*)(const TileArgs&);

template <bool kRowMajorA, int NV>
TileFunction TileFor(int64_t rows) {
  constexpr bool kWide = kMaxVectors == 4;
  switch (rows) {
    case 1:
      return &Tile<kRowMajorA, 1, NV>;
    case 2:
      return &Tile<kRowMajorA, 2, NV>;
    case 4:
      return &Tile<kRowMajorA, 4, NV>;
    case 6:
      if constexpr (kWide ? NV >= 3 : true) return &Tile<kRowMajorA, 6, NV>;
      break;
    case 8:
      if constexpr (kWide ? NV == 2 || NV == 3 : NV == 1) return &Tile<kRowMajorA, 8, NV>;
      break;
    case 12:
      if constexpr (kWide && NV <= 2) return &Tile<kRowMajorA, 12, NV>;
      break;
  }
  return nullptr;
}

template <bool kRowMajorA>
TileFunction TileFor(int64_t rows, int vectors) {
  switch (vectors) {
    case 1:
      return TileFor<kRowMajorA, 1>(rows);
    case 2:
      return TileFor<kRowMajorA, 2>(rows);
#if HWY_TARGET == HWY_AVX3
    case 3:
      return TileFor<kRowMajorA, 3>(rows);
    case 4:
      return TileFor<kRowMajorA, 4>(rows);
#endif
  }
  return nullptr;
}

// Bias, activation and residual of a block of C that has just been written.
HWY_NOINLINE void Finish(const Args& g, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  for (int64_t i = row; i < row + rows; ++i) {
    float* c = g.c + i * g.ldc;
    for (int64_t j = column; j < column + columns; ++j) {
      float x = c[j];
      if (g.bias != nullptr) x += g.bias[j];
      if (g.pre_activation != nullptr) g.pre_activation[i * g.ldc + j] = x;
      x = activate(g.activation, x);
      if (g.residual != nullptr) x += g.residual[i * g.ldc + j];
      c[j] = x;
    }
  }
}

// A panel of C: `rows` rows from `row`, all tiles of one block of k.
struct PanelOfC {
  int64_t row, rows, column, columns;
  int vectors;
  int64_t tile_rows;
  bool load_c, last;
};

bool HasEpilogue(const Args& g) {
  return g.bias != nullptr || g.pre_activation != nullptr || g.activation != Activation::none ||
         g.residual != nullptr;
}

HWY_NOINLINE void MultiplyPanel(const Args& g, const PanelOfC& p, const RowsOfA& a, const float* b,
                                int64_t b_stride, int64_t k) {
  TileArgs t{};
  t.a_stride = a.stride;
  t.b = b;
  t.b_stride = b_stride;
  t.c_stride = g.ldc;
  t.k = k;
  t.last_lanes = p.columns - (p.vectors - 1) * kLanes;
  t.load_c = p.load_c;
  const bool finish = p.last && HasEpilogue(g);
  int64_t i = 0;
  for (int64_t height = p.tile_rows; height > 0; height = height > 4 ? 4 : height / 2) {
    const TileFunction tile =
        a.row_major ? TileFor<true>(height, p.vectors) : TileFor<false>(height, p.vectors);
    for (; i + height <= p.rows; i += height) {
      t.a = a.at(i);
      t.c = g.c + (p.row + i) * g.ldc + p.column;
      t.next_c = t.c + height * g.ldc;
      tile(t);
      if (finish) Finish(g, p.row + i, height, p.column, p.columns);
    }
  }
}

RowsOfA PrepareA(const Args& g, int64_t row, int64_t rows, int64_t k, int64_t count) {
  if (g.ta == Transpose::no) return {g.a + row * g.lda + k, g.lda, true, 0};
  const int64_t slivers = ceil_div(rows, kSliverRows);
  float* to = private_scratch.get<float>(static_cast<size_t>(slivers * kSliverRows * count));
  PackSlivers(g.a + k * g.lda + row, g.lda, rows, count, to);
  return {to, kSliverRows, false, kSliverRows * count};
}

// One chunk of k and n: packs B, then multiplies blocks of rows with it.
struct Chunk {
  const Args& g;
  Panels panels;
  int64_t k_begin, k_end;
  int64_t blocks_k;  // of this chunk
  float* packed;

  int64_t k_at(int64_t block) const { return k_begin + (k_end - k_begin) * block / blocks_k; }
  float* panel(int64_t block, int64_t p) const {
    const int64_t k = k_at(block), count = k_at(block + 1) - k;
    return packed + ((k - k_begin) * panels.vectors + count * panels.vector(p)) * kLanes;
  }
};

void PackPanelOf(const Chunk& chunk, int64_t block, int64_t p) {
  const Args& g = chunk.g;
  const Panels& panels = chunk.panels;
  const int64_t k = chunk.k_at(block), count = chunk.k_at(block + 1) - k;
  const int64_t local = panels.vector(p) * kLanes, column = panels.first + local;
  const bool transposed = g.tb == Transpose::yes;
  const float* from = transposed ? g.b + column * g.ldb + k : g.b + k * g.ldb + column;
  const int width = panels.width(p);
  PackPanel(from, g.ldb, transposed, count, std::min(width * kLanes, panels.columns - local), width,
            chunk.panel(block, p));
}

void MultiplyRows(const Chunk& chunk, int64_t row, int64_t rows) {
  const Args& g = chunk.g;
  const Panels& panels = chunk.panels;
  const int64_t tile_rows = kTileRows[panels.max_width()];
  const RowsOfA whole = PrepareA(g, row, rows, chunk.k_begin, chunk.k_end - chunk.k_begin);
  for (int64_t p = 0; p < panels.count; ++p) {
    const int64_t local = panels.vector(p) * kLanes;
    const int width = panels.width(p);
    PanelOfC c{
        row,   rows, panels.first + local, std::min(width * kLanes, panels.columns - local), width, tile_rows,
        false, false};
    for (int64_t block = 0; block < chunk.blocks_k; ++block) {
      const int64_t k = chunk.k_at(block), count = chunk.k_at(block + 1) - k;
      RowsOfA a = whole;
      a.data += (k - chunk.k_begin) * (a.row_major ? 1 : a.stride);
      c.load_c = k > 0 || g.accumulate;
      c.last = k + count == g.k;
      MultiplyPanel(g, c, a, chunk.panel(block, p), width * kLanes, count);
    }
  }
}

void MultiplyChunk(const Chunk& chunk, bool serial) {
  const Args& g = chunk.g;
  const int64_t packs = chunk.blocks_k * chunk.panels.count;
  const auto pack = [&](int64_t index) {
    PackPanelOf(chunk, index / chunk.panels.count, index % chunk.panels.count);
  };
  const int64_t block_rows =
      std::clamp<int64_t>(kBlockFloats / (chunk.k_end - chunk.k_begin) / 24 * 24, 48, 384);
  const int64_t blocks = ceil_div(g.m, block_rows);
  const auto multiply = [&](int64_t index) {
    const int64_t row = index * block_rows;
    MultiplyRows(chunk, row, std::min(block_rows, g.m - row));
  };
  if (serial) {
    for (int64_t i = 0; i < packs; ++i) pack(i);
    for (int64_t i = 0; i < blocks; ++i) multiply(i);
  } else {
    parallel_for(packs, [&](int64_t i, int) { pack(i); });
    parallel_for(blocks, [&](int64_t i, int) { multiply(i); });
  }
}

void GemmF32(const Args& g) {
  const bool serial = 2 * g.m * g.n * g.k < kSerialFlops;
  const int64_t chunk_k = std::min(g.k, kChunkK);
  const int64_t chunk_n =
      std::min(g.n, kPackedFloats / chunk_k / (kMaxVectors * kLanes) * kMaxVectors * kLanes);
  for (int64_t n = 0; n < g.n; n += chunk_n) {
    const Panels panels(n, std::min(n + chunk_n, g.n));
    for (int64_t k = 0; k < g.k; k += chunk_k) {
      const int64_t k_end = std::min(k + chunk_k, g.k);
      float* packed = shared_scratch.get<float>(static_cast<size_t>((k_end - k) * panels.vectors * kLanes));
      MultiplyChunk({g, panels, k, k_end, ceil_div(k_end - k, kBlockK), packed}, serial);
    }
  }
}

void FinishAll(const Args& g) { Finish(g, 0, g.m, 0, g.n); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(GemmF32);
HWY_EXPORT(FinishAll);

void gemm(const GemmArgs<float>& args) {
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) {  // an empty sum
    for (int64_t i = 0; i < args.m && !args.accumulate; ++i) std::fill_n(args.c + i * args.ldc, args.n, 0.0f);
    HWY_DYNAMIC_DISPATCH(FinishAll)(args);
    return;
  }
  HWY_DYNAMIC_DISPATCH(GemmF32)(args);
}

void gemm_batched(const GemmArgs<float>& args, const GemmBatch& batch) {
  parallel_for(batch.count, [&](int64_t i, int) {
    GemmArgs<float> one = args;
    one.a += i * batch.stride_a;
    one.b += i * batch.stride_b;
    one.c += i * batch.stride_c;
    if (one.pre_activation != nullptr) one.pre_activation += i * batch.stride_c;
    if (one.residual != nullptr) one.residual += i * batch.stride_c;
    gemm(one);
  });
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
