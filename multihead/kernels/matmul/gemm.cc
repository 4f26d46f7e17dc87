// C = op(A)·op(B) by register tiles (micro_kernel-inl.h) over packed panels of B (pack-inl.h).
//
// Loops, outer to inner: chunks of k and n whose packed B stays below kPackedFloats; tasks, that is blocks of
// rows and, if those are too few for the threads, groups of panels; panels; tiles down the rows. The rows of
// A and a panel stay in L2; blocks of k shorter than the chunk would load and store C more often (-2 points).
//
// One thread of a Zen 5 EPYC, AVX-512, 2026-11, all the shapes of bench/gemm_referees.cc, packing included:
// .92 to .98 of the multiply-add peak, the products with a transposed A .85 to .94; geometric mean of the
// speed 1.07 times the better of oneDNN 2.6.3 and OpenBLAS 0.3.21, the worst 0.83. Two threads: 1.8 to 2.0
// times one.
//
// A row-major A is read in place, a transposed one is packed by the task that uses it often enough. B is read
// in place where it is row-major and used by few rows.
//
// bf16 is widened on the way: B where it is packed, A by the task that multiplies it; sums for a bf16 C wait
// in the task's scratch, for all of k, until they are rounded.
#include "multihead/kernels/matmul/gemm.h"

#include <algorithm>
#include <type_traits>

#include "multihead/core/parallel.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/few_rows-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/matmul/mixed-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"

#ifndef MULTIHEAD_KERNELS_GEMM_ONCE
#define MULTIHEAD_KERNELS_GEMM_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kBlockFloats = 1 << 17;   // of A that one task multiplies at once: half of an L2
constexpr int64_t kChunkK = 1024;           // longest chunk of k: a panel of B is 256 KiB
constexpr int64_t kInPlaceChunkK = 512;     // shorter where rows of B may lie a power of two apart
constexpr int64_t kPackedFloats = 1 << 22;  // of B packed at once
constexpr int64_t kInPlaceRows = 192;       // rows of C below which packing a row-major B does not pay
constexpr int64_t kStreamK = 256;           // below, panels and rows are too short to be worth prefetching
constexpr int64_t kStreamRows = 96;
constexpr int64_t kLine = 16;                // floats
constexpr int64_t kSerialFlops = 2'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kTaskFlops = 6'000'000;    // of a task, unless there are enough for kTasksPerThread
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kPackHere = 1 << 15;  // floats of B that the caller packs alone rather than wait for others

constexpr int64_t kReadCost = 32;  // flops that take as long as reading a float of B from memory
constexpr int64_t kFewRows = 8;    // at most so many rows of C are a matter of reading B

thread_local Scratch shared_scratch;   // packed B, read by every thread of one product
thread_local Scratch private_scratch;  // this thread's packed A
thread_local Scratch private_sums;     // this thread's part of a bf16 C

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many tasks to cut work into: a few per thread, so that one that is interrupted does not hold up the
// rest.
int64_t tasks_for(int64_t flops, int threads) {
  return threads * std::clamp<int64_t>(flops / threads / kTaskFlops, 1, threads == 1 ? 1 : kTasksPerThread);
}

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

using Args = EngineArgs;
static_assert(kChunkK % kChain == 0 && kInPlaceChunkK % kChain == 0, "chains end with chunks");

// Columns [first, first + columns) of C in panels of at most kMaxVectors vectors, as equal as possible.
struct Panels {
  Panels(int64_t begin, int64_t end)
      : first(begin),
        columns(end - begin),
        vectors(ceil_div(columns, kLanes)),
        count(ceil_div(vectors, kMaxVectors)),
        tile_rows(kTileRows[ceil_div(vectors, count)]) {}
  int64_t vector(int64_t panel) const { return vectors * panel / count; }
  int width(int64_t panel) const { return static_cast<int>(vector(panel + 1) - vector(panel)); }
  int64_t column(int64_t panel) const { return first + vector(panel) * kLanes; }
  int64_t columns_of(int64_t panel) const {
    return std::min(column(panel + 1), first + columns) - column(panel);
  }

  int64_t first, columns, vectors, count;
  int64_t tile_rows;
};

// --- one chunk of k and n
// ------------------------------------------------------------------------------------

struct Chunk {
  const Args& g;
  Panels panels;
  int64_t k_begin, k_end;
  float* packed;  // null if B is read in place

  int64_t size_k() const { return k_end - k_begin; }
  int64_t b_offset(int64_t k, int64_t column) const {
    return g.tb == Transpose::yes ? column * g.ldb + k : k * g.ldb + column;
  }
  const float* b_at(int64_t k, int64_t column) const { return g.b + b_offset(k, column); }
  float* packed_at(int64_t k, int64_t panel) const {
    return packed + (size_k() * panels.vector(panel) + (k - k_begin) * panels.width(panel)) * kLanes;
  }
};

// Packs op(B)[k, k + count) x panel.
void PackPart(const Chunk& c, int64_t k, int64_t count, int64_t panel) {
  const auto pack = [&](const auto* b) HWY_ATTR {
    PackB<std::remove_cvref_t<decltype(*b)>>(
        {b + c.b_offset(k, c.panels.column(panel)), c.g.ldb, c.g.tb == Transpose::yes, count,
         c.panels.columns_of(panel), c.panels.width(panel)},
        c.packed_at(k, panel));
  };
  c.g.b16 != nullptr ? pack(c.g.b16) : pack(c.g.b);
}

// A transposed B is packed panel by panel, a row-major one by ranges of k so that memory is read in order.
constexpr int64_t kPackSteps = 8;
constexpr int64_t kPackRange = 64;

int64_t PackTasks(const Chunk& c) {
  if (c.packed == nullptr) return 0;
  return c.g.tb == Transpose::yes ? c.panels.count : ceil_div(c.size_k(), kPackRange);
}

void PackTask(const Chunk& c, int64_t task) {
  if (c.g.tb == Transpose::yes) return PackPart(c, c.k_begin, c.size_k(), task);
  const int64_t end = std::min(c.k_begin + (task + 1) * kPackRange, c.k_end);
  for (int64_t k = c.k_begin + task * kPackRange; k < end; k += kPackSteps) {
    for (int64_t p = 0; p < c.panels.count; ++p) PackPart(c, k, std::min(kPackSteps, end - k), p);
  }
}

// A task: some rows of C times some panels.
struct Task {
  int64_t row, rows;
  int64_t panel, panel_end;
};

// Packing a transposed A pays where many panels use it, or where its rows share few sets of the L1 cache
// (TN 384x128x4096 in place .94 of peak, packed .89; 512x128x4096 .80, .90).
bool SharesSets(const Args& g) { return g.lda % 256 == 0; }
bool PacksA(const Args& g, const Task& task) {
  return task.panel_end - task.panel > 4 || SharesSets(g) || g.a16 != nullptr;
}

// The rows of op(A) that a task multiplies.
struct RowsOfA {
  RowsOfA(const Chunk& chunk, const Task& task)
      : row_major(chunk.g.ta == Transpose::no),
        stride(chunk.g.lda),
        k(chunk.size_k()),
        slivers(task.rows),
        packed(!row_major && PacksA(chunk.g, task)) {
    const Args& g = chunk.g;
    const int64_t first = row_major ? task.row * stride + chunk.k_begin : chunk.k_begin * stride + task.row;
    if (g.a16 != nullptr) {
      copy(g.a16 + first, task.rows);
    } else if (packed) {
      copy(g.a + first, task.rows);
    } else {
      data = g.a + first;
    }
  }

  template <class T>
  void copy(const T* from, int64_t rows) {
    const int64_t row = k + kLine;  // rows a power of two apart would share sets of the L1 cache
    float* to = private_scratch.get<float>(static_cast<size_t>(rows * (packed ? k : row)));
    data = to;
    if (packed) return PackA(from, stride, rows, k, to);
    CopyRows(from, stride, rows, k, to, row);
    stride = row;
  }

  void point(GemmTileArgs& t, int64_t row) const {
    t.a = data + (row_major ? row * stride : row);
    t.a_stride = stride;
    if (!packed) return;
    const int64_t sliver = slivers.of(row);
    t.a = data + sliver * kSliver * k + (row - sliver * kSliver);
    t.a_stride = slivers.width(sliver);
  }

  bool row_major;
  const float* data = nullptr;
  int64_t stride, k;
  Slivers slivers;
  bool packed;
};

// The next rows (or, after the last, the next chunk) of an A that will be packed, line by line.
Stream RowsToPackNext(const Chunk& chunk, const Task& task, int64_t line) {
  const Args& g = chunk.g;
  int64_t row = task.row + task.rows, k = chunk.k_begin;
  if (row >= g.m) row = 0, k = chunk.k_end;
  const bool exist = k < g.k && line * kLine < std::min(task.rows, g.m - row);
  return exist ? Stream{g.a + k * g.lda + row + line * kLine, g.lda} : Stream{g.a, 0};
}

// The panel after this one, line by line, is what the first tiles of a panel prefetch.
struct NextPanel {
  NextPanel(const Chunk& chunk, int64_t panel, bool exists) {
    if (!exists) return;
    const int64_t k = chunk.k_begin;
    lines = ceil_div(chunk.panels.width(panel) * kLanes, kLine);
    from = chunk.packed != nullptr ? chunk.packed_at(k, panel) : chunk.b_at(k, chunk.panels.column(panel));
    step = chunk.packed != nullptr ? kLine : chunk.g.ldb;
    jump = chunk.packed != nullptr ? chunk.size_k() * kLine : kLine;
  }
  Stream operator[](int64_t line) const { return {from + line * jump, step}; }

  const float* from = nullptr;
  int64_t lines = 0, step = 0, jump = 0;
};

// The tiles of a task's rows in one panel.
HWY_NOINLINE void MultiplyPanel(const Chunk& chunk, const Task& task, const RowsOfA& a, const NextPanel& next,
                                int64_t panel) {
  const Args& g = chunk.g;
  const Panels& panels = chunk.panels;
  const int64_t k = chunk.k_begin, column = panels.column(panel), columns = panels.columns_of(panel);
  const int width = panels.width(panel);
  const bool rounds = g.c16 != nullptr;
  const int64_t sums_stride = width * kLanes;
  float* sums = rounds ? private_sums.get<float>(static_cast<size_t>(task.rows * sums_stride)) : nullptr;
  LateFinish finish(g, chunk.k_end == g.k && !rounds);
  // The first panel reads the rows of A for the first time. Where they lie close, a step of some floats goes
  // through those of the next tile.
  const bool first_panel = panel == task.panel && a.k >= kStreamK;
  const bool new_rows = first_panel && a.row_major && a.stride == a.k;
  // Columns of an A in place lie far apart, which hardware does not follow (TN 384x128x4096 .73 -> .88 of
  // peak on a loaded machine); an A that lives in L2 loses two points.
  const bool new_columns = first_panel && !a.row_major && !a.packed && g.m * g.k > 2 * kBlockFloats;

  GemmTileArgs t{};
  t.k = chunk.size_k();
  t.b = chunk.packed != nullptr ? chunk.packed_at(k, panel) : chunk.b_at(k, column);
  t.b_stride = chunk.packed != nullptr ? width * kLanes : g.ldb;
  t.c_stride = rounds ? sums_stride : g.ldc;
  t.last_lanes = columns - (width - 1) * kLanes;
  t.add_c = k > 0 || g.accumulate;
  const bool packs_next = a.packed && panel + 1 == task.panel_end && g.a16 == nullptr;
  int64_t line = 0;
  for (int64_t i = 0, height; i < task.rows; i += height, ++line) {
    height = TileHeight(task.rows - i, panels.tile_rows, width);
    a.point(t, i);
    t.c = rounds ? sums + i * sums_stride : g.c + (task.row + i) * g.ldc + column;
    const bool streams = new_rows || new_columns || line < next.lines || packs_next;
    if (streams) {
      t.next_a = {t.b, 0};
      if (new_columns) t.next_a = {t.a + kLine, a.stride};
      if (new_rows) t.next_a = {t.a + height * a.stride, height};
      if (packs_next) t.next_a = RowsToPackNext(chunk, task, line);
      t.next_b = line < next.lines ? next[line] : Stream{t.b, 0};
    }
    TileOf(a.row_major, streams, height, width)(t);
    finish(task.row + i, height, column, columns);
  }
  if (rounds) RoundSums(g, {sums, sums_stride}, task.row, task.rows, column, columns);
}

void MultiplyTask(const Chunk& chunk, const Task& task, bool pack_b) {
  const RowsOfA a(chunk, task);
  for (int64_t panel = task.panel; panel < task.panel_end; ++panel) {
    if (pack_b) PackPart(chunk, chunk.k_begin, chunk.size_k(), panel);
    const bool has_next = panel + 1 < task.panel_end && !pack_b;
    const bool worth = chunk.size_k() >= kStreamK && task.rows >= kStreamRows;
    MultiplyPanel(chunk, task, a, NextPanel(chunk, panel + 1, has_next && worth), panel);
  }
}

// How a chunk is cut into tasks.
struct Tasks {
  Tasks(const Chunk& chunk, int threads) : m(chunk.g.m), panels(chunk.panels.count) {
    // About kBlockFloats of A in blocks of equal height.
    const int64_t rows = std::clamp<int64_t>(kBlockFloats / chunk.size_k(), 2 * kSliver, 16 * kSliver);
    const int64_t wanted = tasks_for(2 * m * chunk.panels.columns * chunk.size_k(), threads);
    blocks = std::max<int64_t>((m + rows / 2) / rows, 1);
    // More tasks for more threads: every block reads B again, every group of panels reads, or packs, A again.
    const int64_t most_blocks = std::max<int64_t>(m / kSliver, 1);
    const bool packs_again = chunk.g.ta == Transpose::yes && SharesSets(chunk.g);
    const int64_t most_groups = packs_again ? std::max<int64_t>(panels / 4, 1) : panels;
    if (m < chunk.panels.columns) groups = std::min(ceil_div(wanted, blocks), most_groups);
    if (blocks * groups < wanted) blocks = std::min(ceil_div(wanted, groups), most_blocks);
    if (blocks * groups < wanted) groups = std::min(ceil_div(wanted, blocks), most_groups);
  }
  int64_t count() const { return blocks * groups; }
  Task operator[](int64_t i) const {
    const int64_t row = m * (i / groups) / blocks, row_end = m * (i / groups + 1) / blocks,
                  group = i % groups;
    return {row, row_end - row, panels * group / groups, panels * (group + 1) / groups};
  }

  int64_t m, panels;
  int64_t blocks, groups = 1;
};

void MultiplyChunk(const Chunk& chunk, int threads) {
  const Tasks tasks(chunk, threads);
  const int64_t packs = PackTasks(chunk);
  if (threads == 1) {
    // The first block of rows packs each panel of a transposed B right before it uses it.
    const bool lazily = chunk.packed != nullptr && chunk.g.tb == Transpose::yes;
    for (int64_t i = 0; i < packs && !lazily; ++i) PackTask(chunk, i);
    for (int64_t i = 0; i < tasks.count(); ++i) MultiplyTask(chunk, tasks[i], lazily && i == 0);
    return;
  }
  if (chunk.panels.columns * chunk.size_k() <= kPackHere) {
    for (int64_t i = 0; i < packs; ++i) PackTask(chunk, i);
  } else {
    parallel_for(packs, [&](int64_t i, int) { PackTask(chunk, i); });
  }
  parallel_for(tasks.count(), [&](int64_t i, int) { MultiplyTask(chunk, tasks[i], false); });
}

// --- a few rows
// ----------------------------------------------------------------------------------------------

inline constexpr int kFewVectors =
    kMaxVectors == 4 ? 3 : 2;  // with 4 M = 4 reaches .213 of peak, with 3 .239

// At most so many rows of C turn a transposed B on the way instead of packing it: 16 rows times 50257x768 .42
// -> .57 of peak, times 3072x768 .53 -> .70; 32 rows lose a tenth where B comes from a cache.
inline constexpr int64_t kFewTurned = (kMaxVectors == 4 ? 3 : 2) * kFewRows;

struct Columns {
  int64_t begin, end;
};

// The first rows turn B in registers; more than those find it turned in the L1 cache.
void FewRowsTransposedB(const Args& g, Columns columns) {
  const int64_t first = ceil_div(g.m, ceil_div(g.m, kFewRows));
  const TransposedRowsFunction multiply = TransposedRowsOf(first);
  alignas(64) float turned[kChain * kLanes];
  for (int64_t n = columns.begin; n < columns.end; n += kLanes) {
    const int64_t count = std::min(kLanes, columns.end - n);
    for (int64_t k = 0; k < g.k; k += kChain) {
      const int64_t size = std::min(kChain, g.k - k);
      const bool add_c = k > 0 || g.accumulate;
      multiply({.a = g.a + k,
                .a_stride = g.lda,
                .b = g.b + n * g.ldb + k,
                .b_stride = g.ldb,
                .c = g.c + n,
                .c_stride = g.ldc,
                .columns = count,
                .k = size,
                .add_c = add_c,
                .left = g.k - k,
                .distance = std::min(kTransposedAhead, g.k),
                .next = g.b + (n + kLanes) * g.ldb,
                .turned = g.m > first ? turned : nullptr});
      GemmTileArgs t{};
      t.a_stride = g.lda, t.b = turned, t.b_stride = kLanes, t.c_stride = g.ldc;
      t.k = size, t.last_lanes = count, t.add_c = add_c;
      for (int64_t row = first, height; row < g.m; row += height) {
        height = TileHeight(g.m - row, kTileRows[1], 1);
        t.a = g.a + row * g.lda + k;
        t.c = g.c + row * g.ldc + n;
        TileOf(true, false, height, 1)(t);
      }
    }
  }
  if (HasEpilogue(g)) Finish(g, 0, g.m, columns.begin, columns.end - columns.begin);
}

// Whole vectors only. Of 4 to 128 rows of B side by side 8 are fastest (M = 2: .143 of peak, with 16 .106)
// until loading and storing C costs more (M = 8: .31, with 128 .385).
template <int NV>
void FewRowsInPlace(const Args& g, Columns columns) {
  const int64_t side_by_side = g.m <= 6 ? 8 : kChain, count = columns.end - columns.begin;
  float* chains = private_scratch.get<float>(static_cast<size_t>(g.m * count));  // that are not at their end
  for (int64_t k = 0; k < g.k; k += side_by_side) {
    GemmTileArgs t{};
    t.k = std::min(side_by_side, g.k - k);
    const int64_t end = k + t.k, begin = k / kChain * kChain;
    const bool last = end % kChain == 0 || end == g.k;
    t.a = g.a + k;
    t.a_stride = g.lda;
    t.b_stride = g.ldb;
    t.c_stride = last ? g.ldc : count;
    t.last_lanes = kLanes;
    t.add_c = last && (begin > 0 || g.accumulate);
    t.begin_stride = count;
    int64_t n = columns.begin;
    const auto panel = [&](int vectors) {
      t.b = g.b + k * g.ldb + n;
      t.c = last ? g.c + n : chains + n - columns.begin;
      t.begin = k > begin ? chains + n - columns.begin : nullptr;
      vectors == NV ? RowsInPlace<NV>(g.m, t) : RowsInPlace<1>(g.m, t);
      n += vectors * kLanes;
    };
    while (n + NV * kLanes <= columns.end) panel(NV);
    while (n < columns.end) panel(1);
  }
  if (HasEpilogue(g)) Finish(g, 0, g.m, columns.begin, count);
}

void FewRows(const Args& g, int threads) {
  const int64_t units = ceil_div(g.n, kMaxVectors * kLanes);
  const int64_t tasks = std::min<int64_t>(units, threads);  // long runs of memory for each
  const auto task = [&](int64_t i) {
    const Columns columns{units * i / tasks * kMaxVectors * kLanes,
                          std::min(units * (i + 1) / tasks * kMaxVectors * kLanes, g.n)};
    if (g.tb == Transpose::yes) return FewRowsTransposedB(g, columns);
    g.m <= 6 ? FewRowsInPlace<kFewVectors>(g, columns) : FewRowsInPlace<kMaxVectors == 4 ? 3 : 1>(g, columns);
  };
  if (tasks == 1) return task(0);
  parallel_for(tasks, [&](int64_t i, int) { task(i); });
}

// --- all
// -----------------------------------------------------------------------------------------------------

void GemmF32(const Args& g) {
  const int64_t flops = std::max(2 * g.m, g.m <= kFewRows ? kReadCost : 0) * g.n * g.k;
  const int threads = flops < kSerialFlops ? 1 : num_threads();
  const bool whole_vectors = g.n % kLanes == 0;
  const int64_t few = g.tb == Transpose::yes ? kFewTurned : whole_vectors ? kFewRows : 0;
  const bool f32 = g.a16 == nullptr && g.b16 == nullptr && g.c16 == nullptr;
  if (g.m <= few && g.ta == Transpose::no && f32) return FewRows(g, threads);
  const bool in_place = g.tb == Transpose::no && g.m <= kInPlaceRows && whole_vectors && g.b16 == nullptr;
  const int64_t widest = kMaxVectors * kLanes;
  const int64_t chunk_k = g.c16 != nullptr ? g.k : std::min(g.k, in_place ? kInPlaceChunkK : kChunkK);
  const int64_t chunk_n =
      in_place ? g.n : std::min(g.n, std::max<int64_t>(kPackedFloats / chunk_k / widest, 1) * widest);
  for (int64_t n = 0; n < g.n; n += chunk_n) {
    const Panels panels(n, std::min(n + chunk_n, g.n));
    float* packed = in_place
                        ? nullptr
                        : shared_scratch.get<float>(static_cast<size_t>(chunk_k * panels.vectors * kLanes));
    for (int64_t k = 0; k < g.k; k += chunk_k) {
      const int64_t k_end = std::min(k + chunk_k, g.k);
      MultiplyChunk({g, panels, k, k_end, packed}, threads);
    }
  }
}

// The epilogue of an empty sum.
void FinishEmpty(const Args& g) {
  if (g.c16 == nullptr) return FinishAll(g);
  float* zeros = private_sums.get<float>(static_cast<size_t>(g.n));
  std::fill_n(zeros, g.n, 0.0f);
  RoundSums(g, {zeros, 0}, 0, g.m, 0, g.n);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(GemmF32);
HWY_EXPORT(FinishAll);
HWY_EXPORT(FinishEmpty);

void multiply_widened(const EngineArgs& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k > 0) return HWY_DYNAMIC_DISPATCH(GemmF32)(g);
  for (int64_t i = 0; i < g.m && g.c != nullptr && !g.accumulate; ++i)
    std::fill_n(g.c + i * g.ldc, g.n, 0.0f);
  HWY_DYNAMIC_DISPATCH(FinishEmpty)(g);
}

void gemm(const GemmArgs<float>& args) {
  const MatmulPrecision precision = float32_matmul_precision();
  const bool any = args.m > 0 && args.n > 0 && args.k > 0;
  if (any && precision != MatmulPrecision::highest && has_tiles() && tiles_pay(args)) {
    gemm_on_tiles(args, precision, TileUnit::amx);
    HWY_DYNAMIC_DISPATCH(FinishAll)(args);
    return;
  }
  multiply_widened({args});
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
