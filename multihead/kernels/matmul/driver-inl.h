// C = op(A)·op(B) by register tiles (micro_kernel-inl.h) over packed panels of B (pack-inl.h).
//
// Loops, outer to inner: chunks of k and n whose packed B stays below kPackedWords; tasks, that is blocks of
// rows and, if those are too few for the threads, groups of panels; panels; tiles down the rows. The rows of
// A and a panel stay in L2; blocks of k shorter than the chunk would load and store C more often (-2 points).
//
// One thread of a Zen 5 EPYC, AVX-512, 2026-11, all the shapes of bench/gemm_referees.cc, packing included:
// .92 to .98 of the multiply-add peak, the products with a transposed A .85 to .94; geometric mean of the
// speed 1.07 times the better of oneDNN 2.6.3 and OpenBLAS 0.3.21, the worst 0.83. Two threads: 1.8 to 2.0
// times one.
//
// A row-major A is read in place, a transposed one is packed by the task that uses it often enough. B is read
// in place where it is row-major and used by few rows. That is for operands whose words lie in memory as the
// engine multiplies them; of others B becomes words where it is packed, A by the task that multiplies it.
//
// Sums for a bf16 C are those of all of k, and rounded tile by tile.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_DRIVER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_DRIVER_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_DRIVER_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_DRIVER_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "multihead/core/threads/interrupt.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/caches.h"
#include "multihead/kernels/matmul/blocking-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/epilogue_bf16-inl.h"
#include "multihead/kernels/matmul/few_rows_driver-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/matmul/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

static_assert(kChunkK % kChain == 0 && kInPlaceChunkK % kChain == 0 && kShortChunkK % kChain == 0,
              "chains end with chunks");

// Columns [first, first + columns) of C in panels of at most kMaxVectors vectors, as equal as possible.
template <class Engine>
struct Panels {
  static constexpr int64_t kLanes = kLanesOf<typename Engine::Real>;

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

template <class Engine>
struct Chunk {
  using Real = typename Engine::Real;

  const Product<Engine>& product;
  Panels<Engine> panels;
  int64_t k_begin, k_end;  // words
  Real* packed;            // null if B is read in place
  const typename Engine::Args& g = product.g;

  int64_t size_k() const { return k_end - k_begin; }
  // How many of the values in `count` words from `k` on lie within k.
  int64_t numbers(int64_t k, int64_t count) const {
    return std::min((k + count) * Engine::kDepth, g.k) - k * Engine::kDepth;
  }
  const Real* b_at(int64_t k, int64_t column) const {
    return product.b.first + k * product.b.stride + column;
  }
  Real* packed_at(int64_t k, int64_t panel) const {
    return packed + (size_k() * panels.vector(panel) + (k - k_begin) * panels.width(panel)) * panels.kLanes;
  }
};

// Packs op(B)[k, k + count) x panel.
template <class Engine>
void PackPart(const Chunk<Engine>& c, int64_t k, int64_t count, int64_t panel) {
  const bool transposed = c.g.tb == Transpose::yes;
  const int64_t column = c.panels.column(panel), row = k * Engine::kDepth;
  const auto pack = [&](const auto* b) HWY_ATTR {
    PackB<Engine, std::remove_cvref_t<decltype(*b)>>(
        {b + (transposed ? column * c.g.ldb + row : row * c.g.ldb + column), c.g.ldb, transposed,
         c.numbers(k, count), c.panels.columns_of(panel), c.panels.width(panel)},
        c.packed_at(k, panel));
  };
  c.g.b16 != nullptr ? pack(c.g.b16) : pack(c.g.b);
}

// A transposed B is packed panel by panel, a row-major one by ranges of k so that memory is read in order.
constexpr int64_t kPackSteps = 8;

// Values of k that a task packs: up to 64, and few enough for two tasks a thread.
inline int64_t PackRange(int64_t k, int threads) {
  return std::clamp(k / (2 * threads) / kPackSteps * kPackSteps, kPackSteps, 8 * kPackSteps);
}

template <class Engine>
int64_t PackTasks(const Chunk<Engine>& c, int threads) {
  if (c.packed == nullptr) return 0;
  return c.g.tb == Transpose::yes ? c.panels.count : ceil_div(c.size_k(), PackRange(c.size_k(), threads));
}

template <class Engine>
void PackTask(const Chunk<Engine>& c, int64_t task, int threads) {
  if (c.g.tb == Transpose::yes) return PackPart(c, c.k_begin, c.size_k(), task);
  const int64_t range = PackRange(c.size_k(), threads);
  const int64_t end = std::min(c.k_begin + (task + 1) * range, c.k_end);
  for (int64_t k = c.k_begin + task * range; k < end; k += kPackSteps) {
    for (int64_t p = 0; p < c.panels.count; ++p) PackPart(c, k, std::min(kPackSteps, end - k), p);
  }
}

// A task: some rows of C times some panels.
struct Task {
  int64_t row, rows;
  int64_t panel, panel_end;
};

// Packing or transposing a transposed A pays where many panels use it, or where its rows share few sets of
// the L1 cache (TN 384x128x4096 in place .94 of peak, packed .89; 512x128x4096 .80, .90).
template <class Args>
bool SharesSets(const Args& g) {
  return g.lda % 256 == 0;
}

// The rows of op(A) that a task multiplies.
template <class Engine>
struct RowsOfA {
  using Real = typename Engine::Real;

  RowsOfA(const Chunk<Engine>& chunk, const Task& task)
      : row_major(chunk.g.ta == Transpose::no),
        stride(chunk.product.a.stride),
        k(chunk.size_k()),
        slivers(task.rows) {
    const auto& g = chunk.g;
    const WordsInPlace<Real>& a = chunk.product.a;
    const bool in_place = a.first != nullptr;
    packed = !row_major && (!in_place || task.panel_end - task.panel > 4 || SharesSets(g));
    if (in_place && !packed) {
      data = a.first + (row_major ? task.row * stride + chunk.k_begin : chunk.k_begin * stride + task.row);
      return;
    }
    const int64_t from = chunk.k_begin * Engine::kDepth;
    const int64_t first = row_major ? task.row * g.lda + from : from * g.lda + task.row;
    const int64_t count = chunk.numbers(chunk.k_begin, k);
    if constexpr (Engine::kDepth == 1 && std::is_same_v<Real, float>) {
      if (packed && g.a16 == nullptr) {
        transpose(g.a + first, g.lda, task.rows);
        return;
      }
    }
    g.a16 != nullptr ? copy(g.a16 + first, g.lda, task.rows, count)
                     : copy(g.a + first, g.lda, task.rows, count);
  }

  template <class T>
  void copy(const T* from, int64_t from_stride, int64_t rows, int64_t count) {
    const int64_t row = k + kLine<Real>;  // rows a power of two apart would share sets of the L1 cache
    Real* to = private_scratch->get<Real>(static_cast<size_t>(rows * (packed ? k : row)));
    data = to;
    if (packed) return PackA<Engine>(from, from_stride, rows, count, to);
    for (int64_t i = 0; i < rows; ++i) CopyAlong<Engine>(from + i * from_stride, count, to + i * row);
    stride = row;
  }

  // Rows of A as if it were not transposed: a tile reads whole lines of those, of a sliver a quarter of each
  // (TN 768x256x4096 1.07, Sapphire Rapids, November 2026).
  void transpose(const Real* from, int64_t from_stride, int64_t rows) {
    constexpr int64_t lanes = kLanesOf<Real>;
    const int64_t row = k + kLine<Real>;  // as in copy
    Real* to = private_scratch->get<Real>(static_cast<size_t>(rows * row));
    for (int64_t i = 0; i < k; i += lanes) {
      PackTransposed<Engine>(from + i * from_stride, from_stride, std::min(lanes, k - i), rows, to + i, row);
    }
    data = to, stride = row, row_major = true, packed = false;
  }

  void point(TileArgs<Real>& t, int64_t row) const {
    t.a = data + (row_major ? row * stride : row);
    t.a_stride = stride;
    if (!packed) return;
    const int64_t sliver = slivers.of(row);
    t.a = data + sliver * kSliver * k + (row - sliver * kSliver);
    t.a_stride = slivers.width(sliver);
  }

  bool row_major;
  const Real* data = nullptr;
  int64_t stride, k;
  Slivers slivers;
  bool packed;
};

// The next rows (or, after the last, the next chunk) of an A that will be packed, line by line.
template <class Engine, class T>
Stream<typename Engine::Real> RowsToPackNext(const T* a, const Chunk<Engine>& chunk, const Task& task,
                                             int64_t line) {
  using Real = typename Engine::Real;
  const auto& g = chunk.g;
  constexpr int64_t kNumbers = kLine<T>;  // of a line
  int64_t row = task.row + task.rows, k = chunk.k_begin * Engine::kDepth + line % Engine::kDepth;
  if (row >= g.m) row = 0, k += chunk.size_k() * Engine::kDepth;
  const int64_t column = line / Engine::kDepth * kNumbers;
  const bool exist = k < g.k && column < std::min(task.rows, g.m - row);
  const auto* from = reinterpret_cast<const Real*>(a + (exist ? k * g.lda + row + column : 0));
  return {from, exist ? Engine::kDepth * g.lda * kLine<Real> / kNumbers : 0};
}

// The panel after this one, line by line, is what the first tiles of a panel prefetch.
template <class Engine>
struct NextPanel {
  using Real = typename Engine::Real;

  NextPanel(const Chunk<Engine>& chunk, int64_t panel, bool exists) {
    if (!exists) return;
    const int64_t k = chunk.k_begin;
    lines = ceil_div(chunk.panels.width(panel) * kLanesOf<Real>, kLine<Real>);
    from = chunk.packed != nullptr ? chunk.packed_at(k, panel) : chunk.b_at(k, chunk.panels.column(panel));
    step = chunk.packed != nullptr ? kLine<Real> : chunk.product.b.stride;
    jump = chunk.packed != nullptr ? chunk.size_k() * kLine<Real> : kLine<Real>;
  }
  Stream<Real> operator[](int64_t line) const { return {from + line * jump, step}; }

  const Real* from = nullptr;
  int64_t lines = 0, step = 0, jump = 0;
};

// Prefetches rows that will be written, while the next tile multiplies.
template <class T>
HWY_INLINE void FetchRows(const T* c, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, c += stride) {
    for (int64_t j = 0; j < columns; j += kLine<T>) __builtin_prefetch(c + j, 1);
  }
}

// The tiles of a task's rows in one panel.
template <class Engine>
HWY_NOINLINE void MultiplyPanel(const Chunk<Engine>& chunk, const Task& task, const RowsOfA<Engine>& a,
                                const NextPanel<Engine>& next, int64_t panel) {
  using Real = typename Engine::Real;
  constexpr int64_t lanes = kLanesOf<Real>;
  const auto& g = chunk.g;
  const Panels<Engine>& panels = chunk.panels;
  const int64_t k = chunk.k_begin, column = panels.column(panel), columns = panels.columns_of(panel);
  const int width = panels.width(panel);
  const bool rounds = g.c16 != nullptr;
  const bool fetches = rounds && g.m * g.n > 1 << 13;  // else C is in L1
  const bool finishes = chunk.k_end == chunk.product.words && HasEpilogue(g);
  alignas(64) Real sums[2][kMostTileRows * kMaxVectors * lanes];
  const auto finish_block = [&](const BlockOf<Real>& block) HWY_ATTR {
    if constexpr (Engine::kRounds) {
      if (rounds) return RoundSums<Engine>(g, block);
    }
    if (finishes) Finish(g, block.row, block.rows, block.column, block.columns);
  };
  Late<decltype(finish_block), Real> finish(finish_block);
  // The first panel reads the rows of A for the first time. Where they lie close, a step of some floats goes
  // through those of the next tile.
  const bool first_panel = panel == task.panel && a.k >= kStreamK;
  const bool new_rows = first_panel && a.row_major && a.stride == a.k;
  // Columns of an A in place lie far apart, which hardware does not follow (TN 384x128x4096 .73 -> .88 of
  // peak on a loaded machine); an A that lives in L2 loses two points.
  const bool new_columns =
      first_panel && !a.row_major && !a.packed && g.m * chunk.product.words > 2 * kBlockWords<Real>;

  TileArgs<Real> t{};
  const Real* const b = chunk.packed != nullptr ? chunk.packed_at(k, panel) : chunk.b_at(k, column);
  t.b_stride = chunk.packed != nullptr ? width * lanes : chunk.product.b.stride;
  t.c_stride = rounds ? width * lanes : g.ldc;
  t.last_lanes = columns - (width - 1) * lanes;
  const bool packs_next = a.packed && panel + 1 == task.panel_end;
  // Chain after chain of k down all rows: a panel's part of a chain (32 KiB) stays in an L1 that has room for
  // more, and C takes up one chain after the other anyway; in an L1 of 32 KiB it would only be read again (Zen 4:
  // NT 2048x768x256 .96, with AVX2 .95). Sums for a bf16 C are of all k, tile by tile. An A whose rows lie apart is
  // read along each of them (NN 1024x768x3072 would lose .06).
  const bool by_chains =
      !rounds && l1_data_bytes() > 1 << 15 && (!a.row_major || chunk.size_k() <= 2 * kChain);
  const int64_t step = by_chains ? kChain : chunk.size_k();
  for (int64_t k0 = 0; k0 < chunk.size_k(); k0 += step) {
    const bool last = k0 + step >= chunk.size_k();
    t.k = std::min(step, chunk.size_k() - k0);
    t.b = b + k0 * t.b_stride;
    t.add_c = k + k0 > 0 || g.accumulate;
    int64_t line = 0;
    for (int64_t i = 0, height; i < task.rows; i += height, ++line) {
      height = TileHeight(task.rows - i, panels.tile_rows, width);
      a.point(t, i);
      t.a += k0 * (a.row_major ? 1 : t.a_stride);
      t.c = rounds ? sums[line % 2] : g.c + (task.row + i) * g.ldc + column;
      const bool streams = new_rows || new_columns || line < next.lines || packs_next;
      if (streams) {
        t.next_a = {t.b, 0};
        if (new_columns) t.next_a = {t.a + kLine<Real>, a.stride};
        if (new_rows) t.next_a = {t.a + height * a.stride, height};
        if (packs_next) {
          t.next_a = g.a16 != nullptr ? RowsToPackNext(g.a16, chunk, task, line)
                                      : RowsToPackNext(g.a, chunk, task, line);
          t.next_a.from += k0 * t.next_a.step;
        }
        t.next_b = line < next.lines ? next[line] : Stream<Real>{t.b, 0};
        if (line < next.lines) t.next_b.from += k0 * t.next_b.step;
      }
      TileOf<Engine>(a.row_major, streams, height, width)(t);
      if (!last) continue;
      finish({task.row + i, height, column, columns, t.c, t.c_stride});
      if (fetches) FetchRows(g.c16 + (task.row + i) * g.ldc + column, g.ldc, height, columns);
    }
  }
}

template <class Engine>
void MultiplyTask(const Chunk<Engine>& chunk, const Task& task, bool pack_b) {
  const RowsOfA<Engine> a(chunk, task);
  for (int64_t panel = task.panel; panel < task.panel_end; ++panel) {
    if (pack_b) PackPart(chunk, chunk.k_begin, chunk.size_k(), panel);
    const bool has_next = panel + 1 < task.panel_end && !pack_b;
    const bool worth = chunk.size_k() >= kStreamK && task.rows >= kStreamRows;
    MultiplyPanel(chunk, task, a, NextPanel<Engine>(chunk, panel + 1, has_next && worth), panel);
  }
}

// How a chunk is cut into tasks: blocks of rows times groups of panels.
struct Tasks {
  template <class Engine>
  Tasks(const Chunk<Engine>& chunk, int threads) : m(chunk.g.m), panels(chunk.panels.count) {
    // About kBlockWords of A in blocks of equal height.
    const int64_t rows =
        std::clamp<int64_t>(kBlockWords<typename Engine::Real> / chunk.size_k(), 2 * kSliver, 16 * kSliver);
    blocks = std::max<int64_t>((m + rows / 2) / rows, 1);
    if (threads == 1) return;
    const bool packs_again = chunk.g.ta == Transpose::yes && SharesSets(chunk.g);
    share_out(chunk.size_k(), rows, packs_again, threads);
    order(chunk.panels.columns, threads);
  }
  int64_t count() const { return blocks * groups; }
  Task operator[](int64_t i) const {
    const int64_t block = by_groups ? i % blocks : i / groups, group = by_groups ? i / blocks : i % groups;
    const int64_t row = first_row(block);
    return {row, first_row(block + 1) - row, panels * group / groups, panels * (group + 1) / groups};
  }

  // Whole slivers, for tiles of full height.
  int64_t first_row(int64_t block) const {
    return std::min(m, ceil_div(m, kSliver) * block / blocks * kSliver);
  }

  int64_t m, panels;
  int64_t blocks, groups = 1;
  bool by_groups = false;  // neighbours are rows of one group of panels, not groups of the same rows

 private:
  // The cut that ends first if the threads take its tasks in turns; among those nearly as good, that of most
  // tasks, so that a thread which is interrupted does not hold up the rest.
  void share_out(int64_t k, int64_t most_rows, bool packs_again, int threads) {
    const int64_t units = ceil_div(m, kSliver);
    const int64_t highest = std::clamp<int64_t>(most_rows / kSliver, 1, units);
    double least = 0;
    for (int64_t g = 1, width = 0; g <= panels; ++g) {
      if (ceil_div(panels, g) == width) continue;
      width = ceil_div(panels, g);
      for (int64_t height = highest, b = 0; height > 0; --height) {
        if (ceil_div(units, height) == b) continue;
        b = ceil_div(units, height);
        if (b * g > 4 * kTasksPerThread * threads && least > 0) break;
        const double time = cost_of(b, g, k, packs_again, threads);
        const bool better = least == 0 || time < least * 0.98 || (time < least * 1.02 && b * g > count());
        if (!better) continue;
        least = least == 0 ? time : std::min(least, time);
        blocks = b, groups = g;
      }
    }
  }

  // A thread takes neighbours: those that read less of A and B, which lie in other cores' caches. By groups it also
  // multiplies by the panels that it packed.
  void order(int64_t columns, int threads) {
    const int64_t run = ceil_div(count(), threads), rows = ceil_div(m, blocks),
                  width = ceil_div(columns, groups);
    const auto read = [run](int64_t inner, int64_t of_inner, int64_t of_outer) {
      return std::min(run, inner) * of_inner + ceil_div(run, inner) * of_outer;
    };
    by_groups = read(blocks, rows, width) < read(groups, width, rows);
  }

  // Rows of the highest of b blocks. The last has as many slivers as any, one of them perhaps not whole.
  int64_t highest_of(int64_t b) const {
    if (b == 1) return m;
    const int64_t slivers = ceil_div(m, kSliver), most = ceil_div(slivers, b) * kSliver;
    if (slivers % b != 1) return most;  // another block has as many, all whole
    return std::max(most - (slivers * kSliver - m), slivers / b * kSliver);
  }

  // In cycles of an AVX-512 core: tiles, panels of B read again by each block, rows of A packed again by each
  // group, and what a task costs in itself.
  double cost_of(int64_t b, int64_t g, int64_t k, bool packs_again, int threads) const {
    constexpr double kTile = 64 / 27.0, kPanel = 4, kPack = 0.27, kTask = 3000;
    const auto rows = static_cast<double>(highest_of(b));
    const auto width = static_cast<double>(ceil_div(panels, g));
    const auto rounds = static_cast<double>(ceil_div(b * g, threads));
    const double of_k = rows * width * kTile + width * kPanel + (packs_again ? rows * kPack : 0);
    return rounds * (static_cast<double>(k) * of_k + kTask);
  }
};

template <class Engine>
void MultiplyChunk(const Chunk<Engine>& chunk, int threads) {
  const Tasks tasks(chunk, threads);
  const int64_t packs = PackTasks(chunk, threads);
  if (threads == 1) {
    // The first block of rows packs each panel of a transposed B right before it uses it.
    const bool lazily = chunk.packed != nullptr && chunk.g.tb == Transpose::yes;
    for (int64_t i = 0; i < packs && !lazily; ++i) PackTask(chunk, i, threads);
    for (int64_t i = 0; i < tasks.count(); ++i) MultiplyTask(chunk, tasks[i], lazily && i == 0);
    return;
  }
  if (chunk.panels.columns * chunk.size_k() <= kPackHere) {
    for (int64_t i = 0; i < packs; ++i) PackTask(chunk, i, threads);
  } else {
    parallel_for(packs, [&](int64_t i, int) { PackTask(chunk, i, threads); });
  }
  parallel_for(tasks.count(), [&](int64_t i, int) { MultiplyTask(chunk, tasks[i], false); });
}

// --- all
// -----------------------------------------------------------------------------------------------------

template <class Engine>
void MultiplyWith(const typename Engine::Args& g) {
  using Real = typename Engine::Real;
  constexpr int64_t lanes = kLanesOf<Real>;
  const Product<Engine> product(g);
  const int64_t flops = std::max(2 * g.m, g.m <= kFewRows ? kReadCost : 0) * g.n * g.k;
  constexpr int64_t slower = sizeof(Real) / sizeof(float);  // f64 has half the lanes
  const int threads = flops * slower < kSerialFlops ? 1 : num_threads();
  const bool whole_vectors = g.n % lanes == 0, words_in_place = product.b.first != nullptr;
  if constexpr (std::is_same_v<Real, float>) {
    if (product.a.first != nullptr && words_in_place && g.ta == Transpose::no) {
      const int64_t few = g.tb == Transpose::yes              ? kFewTransposed
                          : whole_vectors && g.c16 == nullptr ? kFewRows
                                                              : 0;
      if (g.m <= few) return FewRows(product, threads);
    }
  }
  const bool in_place = g.tb == Transpose::no && g.m <= kInPlaceRows && whole_vectors && words_in_place;
  const int64_t widest = kMaxVectors * lanes, all_k = product.words;
  // A transposed A is spread over as many pages as there are values of k; shorter chunks pay while C stays in
  // L2 (768x256x4096 1.03-1.05; larger C .95-.98), and while all threads have work enough between two of
  // them.
  const bool short_chunks = std::is_same_v<Real, float> && g.ta == Transpose::yes &&
                            g.m * g.n <= 2 * kBlockWords<Real> &&
                            2 * g.m * g.n * kShortChunkK >= threads * kShortChunkFlops;
  const int64_t longest = in_place ? kInPlaceChunkK : short_chunks ? kShortChunkK : kChunkK;
  const int64_t chunk_k = g.c16 != nullptr ? all_k : std::min(all_k, longest);
  const int64_t chunk_n =
      in_place ? g.n : std::min(g.n, std::max<int64_t>(kPackedWords<Real> / chunk_k / widest, 1) * widest);
  for (int64_t n = 0; n < g.n; n += chunk_n) {
    const Panels<Engine> panels(n, std::min(n + chunk_n, g.n));
    const auto words = static_cast<size_t>(chunk_k * panels.vectors * lanes);
    Real* packed = in_place ? nullptr : shared_scratch->get<Real>(words);
    for (int64_t k = 0; k < all_k; k += chunk_k) {
      check_interrupt();
      MultiplyChunk(Chunk<Engine>{product, panels, k, std::min(k + chunk_k, all_k), packed}, threads);
    }
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
