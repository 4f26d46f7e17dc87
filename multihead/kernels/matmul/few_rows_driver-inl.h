// Products of a few rows with a large matrix: chunks of columns, one for each thread.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_DRIVER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_DRIVER_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_DRIVER_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_FEW_ROWS_DRIVER_INL_H_
#endif

#include <algorithm>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/matmul/blocking-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/epilogue_bf16-inl.h"
#include "multihead/kernels/matmul/few_rows-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/matmul/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int kFewVectors =
    kMaxVectors == 4 ? 3 : 2;  // with 4 M = 4 reaches .213 of peak, with 3 .239

// At most this many rows of C transpose B on the fly instead of packing it: 16 rows times 50257x768 .42
// -> .57 of peak, times 3072x768 .53 -> .70; 32 rows lose a tenth where B comes from a cache.
inline constexpr int64_t kFewTransposed = (kMaxVectors == 4 ? 3 : 2) * kFewRows;

struct Columns {
  int64_t begin, end;
};

// The first rows transpose B in registers; more than those find it transposed in the L1 cache.
template <class Engine>
void FewRowsTransposedB(const Product<Engine>& p, Columns columns) {
  const EngineArgs& g = p.g;
  const int64_t first = ceil_div(g.m, ceil_div(g.m, kFewRows));
  const TransposedRowsFunction multiply = TransposedRowsOf<Engine>(first);
  const bool rounds = g.c16 != nullptr;
  alignas(64) float transposed[kChain * kLanes], sums[kFewTransposed * kLanes];
  for (int64_t n = columns.begin; n < columns.end; n += kLanes) {
    const int64_t count = std::min(kLanes, columns.end - n), c_stride = rounds ? kLanes : g.ldc;
    float* c = rounds ? sums : g.c + n;
    for (int64_t k = 0; k < p.words; k += kChain) {
      const int64_t size = std::min(kChain, p.words - k);
      const bool add_c = k > 0 || g.accumulate;
      multiply({.a = p.a.first + k,
                .a_stride = p.a.stride,
                .b = p.b.first + n * p.b.stride + k,
                .b_stride = p.b.stride,
                .c = c,
                .c_stride = c_stride,
                .columns = count,
                .k = size,
                .add_c = add_c,
                .left = p.words - k,
                .distance = std::min(kTransposedAhead, p.words),
                .next = p.b.first + (n + kLanes) * p.b.stride,
                .transposed = g.m > first ? transposed : nullptr});
      GemmTileArgs t{};
      t.a_stride = p.a.stride, t.b = transposed, t.b_stride = kLanes, t.c_stride = c_stride;
      t.k = size, t.last_lanes = count, t.add_c = add_c;
      for (int64_t row = first, height; row < g.m; row += height) {
        height = TileHeight(g.m - row, kTileRows[1], 1);
        t.a = p.a.first + row * p.a.stride + k;
        t.c = c + row * c_stride;
        TileOf<Engine>(true, false, height, 1)(t);
      }
    }
    if (rounds) RoundSums<Engine>(g, {0, g.m, n, count, sums, kLanes});
  }
  if (HasEpilogue(g) && !rounds) Finish(g, 0, g.m, columns.begin, columns.end - columns.begin);
}

// Whole vectors only. Of 4 to 128 rows of B side by side 8 are fastest (M = 2: .143 of peak, with 16 .106)
// until loading and storing C costs more (M = 8: .31, with 128 .385).
template <int NV, class Engine>
void FewRowsInPlace(const Product<Engine>& p, Columns columns) {
  const EngineArgs& g = p.g;
  const int64_t side_by_side = g.m <= 6 ? 8 : kChain, count = columns.end - columns.begin;
  float* chains = private_scratch->get<float>(static_cast<size_t>(g.m * count));  // that are not at their end
  for (int64_t k = 0; k < p.words; k += side_by_side) {
    GemmTileArgs t{};
    t.k = std::min(side_by_side, p.words - k);
    const int64_t end = k + t.k, begin = k / kChain * kChain;
    const bool last = end % kChain == 0 || end == p.words;
    t.a = p.a.first + k;
    t.a_stride = p.a.stride;
    t.b_stride = p.b.stride;
    t.c_stride = last ? g.ldc : count;
    t.last_lanes = kLanes;
    t.add_c = last && (begin > 0 || g.accumulate);
    t.begin_stride = count;
    int64_t n = columns.begin;
    const auto panel = [&](int vectors) {
      t.b = p.b.first + k * p.b.stride + n;
      t.c = last ? g.c + n : chains + n - columns.begin;
      t.begin = k > begin ? chains + n - columns.begin : nullptr;
      vectors == NV ? RowsInPlace<Engine, NV>(g.m, t) : RowsInPlace<Engine, 1>(g.m, t);
      n += vectors * kLanes;
    };
    while (n + NV * kLanes <= columns.end) panel(NV);
    while (n < columns.end) panel(1);
  }
  if (HasEpilogue(g)) Finish(g, 0, g.m, columns.begin, count);
}

template <class Engine>
void FewRows(const Product<Engine>& p, int threads) {
  const EngineArgs& g = p.g;
  const int64_t units = ceil_div(g.n, kMaxVectors * kLanes);
  const int64_t tasks = std::min<int64_t>(units, threads);  // long runs of memory for each
  const auto task = [&](int64_t i) {
    const Columns columns{units * i / tasks * kMaxVectors * kLanes,
                          std::min(units * (i + 1) / tasks * kMaxVectors * kLanes, g.n)};
    if (g.tb == Transpose::yes) return FewRowsTransposedB(p, columns);
    g.m <= 6 ? FewRowsInPlace<kFewVectors>(p, columns) : FewRowsInPlace<kMaxVectors == 4 ? 3 : 1>(p, columns);
  };
  if (tasks == 1) return task(0);
  parallel_for(tasks, [&](int64_t i, int) { task(i); });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
