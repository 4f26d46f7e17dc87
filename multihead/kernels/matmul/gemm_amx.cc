// Products on bf16 tiles, in one of three orders. The bits are the same in all: an element is a sum over
// steps of 32 k, in order, which starts from zero or from C.
//
//   panels   X = A, whose rows are read where they lie, if they are bf16 without edges. Y is packed, up to
//            1 MiB (half of L2) at a time; 32 rows of X and up to 384 k of them (24 KiB, half of L1) meet all
//            of it.
//   columns  A is transposed, or of f32 and k is long, so neither lies as tiles want it. X is the operand
//            with fewer lines (a transpose costs 2.5 times what interleaving does). Of up to 384 k of both, rows
//            of memory are packed in order, and all of X meets them, with sums of up to 800 KiB.
//   few      up to 64 rows of A: X = B, 16 columns where they lie, and 1 to 4 tiles of A. Reading B is what
//            takes the time.
//
// Measured on a Xeon with AMX, 2026-11: blocks of k of 128 cost 20 %, all of k at once 15 %; copying X always
// 20 %; chunks of Y of 512 KiB 8 %, of 1.4 MiB 4 %.
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#include <algorithm>
#include <atomic>

#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/matmul/amx_panels-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;   // of packed Y that a task multiplies at once
constexpr int64_t kSumBytes = 800 << 10;   // of sums of columns
constexpr int64_t kSharedBytes = 1 << 24;  // packed for all threads at once
constexpr int64_t kTaskPanels = 4;

thread_local PerThread<Scratch> packed_columns;  // this thread's Y, and its sums

// Runs body(0) … body(count - 1), on one thread if there is no more.
template <class Body>
void share(int threads, int64_t count, const Body& body) {
  if (threads > 1) return parallel_for(count, [&](int64_t i, int) { body(i); });
  for (int64_t i = 0; i < count; ++i) body(i);
}

struct Range {
  int64_t begin, end;
};
Range part_of(int64_t count, int64_t i, int64_t parts) {
  return {count * i / parts, count * (i + 1) / parts};
}

// Rows of X where they lie at such a distance crowd few sets of L1.
bool crowded(const TileProduct& p) {
  const int64_t distance = 2 * p.x.line_stride;
  return p.steps() > 2 && (distance % 4096 == 0 || (distance % 1024 == 0 && p.y.lines >= 512));
}

bool in_place(const TileLines& x, const TileProduct& p) {
  return x.narrow != nullptr && x.k_stride == 1 && p.scheme.parts == 1;
}

// This thread's panel of X.
class PanelOfRows {
 public:
  PanelOfRows(const TileProduct& p, uint16_t* memory)
      : p_(p), packed_{memory, p.steps(), p.step_words()}, in_place_(in_place(p.x, p) && !crowded(p)) {}

  XPanel operator()(int64_t panel) {
    const int64_t line = panel * kBlockLines, steps = p_.steps(), count = p_.x.lines - line;
    XPanel x;
    if (p_.x.k_stride == 1 && count >= 2 * kBlockLines) {
      const int64_t size = p_.x.narrow != nullptr ? 2 : 4;
      x.next = static_cast<const char*>(p_.x.at(line + kBlockLines, 0)),
      x.next_stride = size * p_.x.line_stride;
      x.next_lines = size * p_.x.k / 64;
    }
    if (!in_place_ || count < kBlockLines) {
      const AmxOperand rows = p_.x.part(line, std::min(kBlockLines, count), 0, p_.x.k);
      x.not_finite = amx_pack(rows, AmxSide::rows, p_.scheme.parts, p_.rule(), packed_.places(0, 0));
      x.operand = packed_.operand(0, 0);
      return x;
    }
    const int64_t row = 2 * p_.x.line_stride;
    x.operand.first = static_cast<const char*>(p_.x.at(line, 0));
    x.operand.row = row, x.operand.tile = kAmxLines * row, x.operand.step = 64;
    if (const int64_t k = (steps - 1) * kAmxStep; k + kAmxStep > p_.x.k) {
      amx_pack(p_.x.part(line, kBlockLines, k, p_.x.k - k), AmxSide::rows, 1, NotFinite::keep,
               packed_.places(0, 0));
      x.operand.last = packed_.operand(0, 0).first;
    }
    return x;
  }

 private:
  const TileProduct& p_;
  PackedTiles packed_;
  bool in_place_;
};

// Rows of panels of X, times all pairs of a packed chunk of Y.
void multiply_panels(const TileProduct& p, const PackedTiles& y, int64_t first_pair, Range pairs,
                     Range panels, bool not_finite) {
  const int64_t panel_words = p.steps() * p.step_words();
  auto* memory = private_scratch->get<uint16_t>(
      static_cast<size_t>(panel_words + panel_sums(p, pairs.end - pairs.begin) * 2));
  BlockWriter out(p);
  PanelOfRows rows(p, memory);
  PanelRun run{p, out, reinterpret_cast<float*>(memory + panel_words)};
  for (int64_t i = panels.begin; i < panels.end; ++i) {
    const XPanel x = rows(i);
    const bool bare = (x.not_finite || not_finite) && p.rule() == NotFinite::zero;
    out.keep_sums(bare);
    run.multiply(x, i * kBlockLines, pairs.begin, pairs.end,
                 [&](TileOperand& o, int64_t pair, int64_t step) { y.point(o, pair - first_pair, step); });
    if (!bare) continue;
    out.flush();
    const int64_t x_line = i * kBlockLines, y_line = pairs.begin * kBlockLines;
    add_not_finite(p, p.in_c(x_line, std::min(kBlockLines, p.x.lines - x_line), y_line,
                             std::min(pairs.end * kBlockLines, p.y.lines) - y_line));
  }
}

// Packs pairs of Y from place `at` on. True if a number was not finite.
bool pack_pairs(const TileProduct& p, Range pairs, const PackedTiles& y, int64_t at) {
  const int64_t line = pairs.begin * kBlockLines;
  const int64_t lines = std::min(pairs.end * kBlockLines, p.y.lines) - line;
  return amx_pack(p.y.part(line, lines, 0, p.y.k), AmxSide::columns, p.scheme.parts, p.rule(),
                  y.places(at, 0));
}

// Tasks that each pack pairs of their own and multiply all of X, or 0: Y is the larger operand, and each has enough
// pairs for reading X again (1024x2304x768 on two threads: 1.8 times as fast as one without, 2.0 to 2.2 with them).
int64_t tasks_of_pairs(const TileProduct& p, int threads) {
  if (threads == 1 || !in_place(p.x, p) || crowded(p) || p.y.lines < p.x.lines) return 0;
  const int64_t fitting = ceil_div(2 * p.pairs() * p.steps() * p.step_words(), kChunkBytes);
  const int64_t tasks = std::max(std::min<int64_t>(2 * threads, p.pairs() / 12), fitting);
  return tasks >= threads ? tasks : 0;
}

// Y is packed chunk by chunk; X is multiplied in runs of rows and, if those are too few for the threads or
// the chunk is too large for a cache, groups of pairs.
void by_panels(const TileProduct& p, int threads) {
  const int64_t pair_bytes = 2 * p.steps() * p.step_words(), pairs = p.pairs();
  const int64_t most = std::max<int64_t>(1, (threads == 1 ? kChunkBytes : kSharedBytes) / pair_bytes);
  if (const int64_t tasks = tasks_of_pairs(p, threads); tasks > 0) {
    return share(threads, tasks, [&](int64_t task) {
      const Range own = part_of(pairs, task, tasks);
      const auto words = static_cast<size_t>((own.end - own.begin) * pair_bytes / 2);
      const PackedTiles y{packed_columns->get<uint16_t>(words), p.steps(), p.step_words()};
      multiply_panels(p, y, own.begin, own, {0, p.panels()}, pack_pairs(p, own, y, 0));
    });
  }
  const int64_t chunks = ceil_div(pairs, most);
  for (int64_t c = 0; c < chunks; ++c) {
    const Range chunk = part_of(pairs, c, chunks);
    const int64_t count = chunk.end - chunk.begin;
    const PackedTiles y{shared_scratch->get<uint16_t>(static_cast<size_t>(count * pair_bytes / 2)), p.steps(),
                        p.step_words()};
    std::atomic<bool> not_finite{false};
    const int64_t packers = std::min<int64_t>(count, threads == 1 ? 1 : kTasksPerThread * threads);
    share(threads, packers, [&](int64_t i) {
      const Range own = part_of(count, i, packers);
      const Range part{chunk.begin + own.begin, chunk.begin + own.end};
      if (pack_pairs(p, part, y, own.begin)) not_finite = true;
    });
    const int64_t runs = threads == 1 ? 1 : ceil_div(p.panels(), kTaskPanels);
    const int64_t wanted = ceil_div(threads == 1 ? 1 : kTasksPerThread * threads, runs);
    const int64_t groups = std::min(std::max(wanted, ceil_div(count * pair_bytes, kChunkBytes)), count);
    share(threads, runs * groups, [&](int64_t task) {  // neighbours have the same pairs, which stay in L2
      const Range own = part_of(count, task / runs, groups);
      multiply_panels(p, y, chunk.begin, {chunk.begin + own.begin, chunk.begin + own.end},
                      part_of(p.panels(), task % runs, runs), not_finite);
    });
  }
}

// Lines of X, packed: those of one block of k, which one thread packs on the way, or all.
struct PackedX {
  PackedTiles tiles;
  Range lines;
  bool one_block;
  std::atomic<bool>* not_finite;
};

void pack_x(const TileProduct& p, const PackedX& x, Range steps) {
  const int64_t k = steps.begin * kAmxStep, count = std::min(steps.end * kAmxStep, p.x.k) - k;
  const AmxOperand from = p.x.part(x.lines.begin, x.lines.end - x.lines.begin, k, count);
  if (amx_pack(from, AmxSide::rows, p.scheme.parts, p.rule(),
               x.tiles.places(0, x.one_block ? 0 : steps.begin)))
    *x.not_finite = true;
}

// Pairs of Y, times all of X.
class ColumnRun {
 public:
  ColumnRun(const TileProduct& p, const PackedX& x) : p_(p), x_(x), out_(p) {}

  void multiply(Range pairs, bool pack_here) {
    const int64_t blocks = ceil_div(p_.steps(), block_steps(p_));
    const int64_t panels = ceil_div(x_.lines.end - x_.lines.begin, kBlockLines),
                  count = pairs.end - pairs.begin;
    const int64_t y_words = count * ceil_div(p_.steps(), blocks) * p_.step_words();
    auto* words = packed_columns->get<uint16_t>(
        static_cast<size_t>(y_words + (blocks > 1 ? 2 * panels * count * kBlockSums : 0)));
    sums_ = reinterpret_cast<float*>(words + y_words);
    bool not_finite = false;
    for (int64_t b = 0; b < blocks; ++b) {
      const Range steps = part_of(p_.steps(), b, blocks);
      if (pack_here) pack_x(p_, x_, steps);
      not_finite |= pack_y(pairs, steps, words);
      const bool last = b + 1 == blocks;
      if (last) bare_ = p_.rule() == NotFinite::zero && (not_finite || *x_.not_finite), out_.keep_sums(bare_);
      multiply_block(pairs, steps, panels, {b == 0, last});
    }
    if (bare_) complete(pairs);
  }

 private:
  bool pack_y(Range pairs, Range steps, uint16_t* words) {
    y_ = {words, steps.end - steps.begin, p_.step_words()};
    const int64_t line = pairs.begin * kBlockLines, k = steps.begin * kAmxStep;
    const AmxOperand from = p_.y.part(line, std::min(pairs.end * kBlockLines, p_.y.lines) - line, k,
                                      std::min(steps.end * kAmxStep, p_.y.k) - k);
    return amx_pack(from, AmxSide::columns, p_.scheme.parts, p_.rule(), y_.places(0, 0));
  }

  void multiply_block(Range pairs, Range steps, int64_t panels, PartOfK part) {
    const int64_t count = pairs.end - pairs.begin;
    TileBlock block;
    block.steps = steps.end - steps.begin, block.share = block_share(block.steps);
    for (int64_t i = 0; i < panels; ++i) {
      x_.tiles.point(block.x, i, x_.one_block ? 0 : steps.begin);
      for (int64_t j = 0; j < count; ++j) {
        y_.point(block.y, j, 0);
        out_.multiply(block, x_.lines.begin + i * kBlockLines, (pairs.begin + j) * kBlockLines, part,
                      sums_ + (i * count + j) * kBlockSums);
      }
    }
  }

  void complete(Range pairs) {
    out_.flush();
    const int64_t line = pairs.begin * kBlockLines,
                  lines = std::min(pairs.end * kBlockLines, p_.y.lines) - line;
    add_not_finite(p_, p_.in_c(x_.lines.begin, x_.lines.end - x_.lines.begin, line, lines));
  }

  const TileProduct& p_;
  const PackedX& x_;
  BlockWriter out_;
  PackedTiles y_;
  float* sums_ = nullptr;
  bool bare_ = false;
};

void columns_of(const TileProduct& p, Range lines, int threads) {
  const int64_t blocks = ceil_div(p.steps(), block_steps(p)), pairs = p.pairs();
  const int64_t panels = ceil_div(lines.end - lines.begin, kBlockLines);
  const int64_t fit =
      blocks > 1 ? kSumBytes / (panels * 4 * kBlockSums) : kChunkBytes / 2 / (2 * p.steps() * p.step_words());
  const int64_t fitting = ceil_div(pairs, std::max<int64_t>(fit, 1)), block = ceil_div(p.steps(), blocks);
  std::atomic<bool> not_finite{false};
  const auto words = [&](int64_t steps) { return static_cast<size_t>(panels * steps * p.step_words()); };
  // Where that is less work than packing Y, each task packs X: it stays in a thread's L2, and none waits for others.
  if (const int64_t tasks = std::max<int64_t>(threads, fitting);
      threads > 1 && tasks * (lines.end - lines.begin) <= p.y.lines) {
    return share(threads, tasks, [&](int64_t task) {
      const PackedX x{
          {private_scratch->get<uint16_t>(words(block)), block, p.step_words()}, lines, true, &not_finite};
      ColumnRun(p, x).multiply(part_of(pairs, task, tasks), true);
    });
  }
  // Each task reads X again, so it should have some pairs.
  const int64_t many = std::min<int64_t>(pairs / 12, kTasksPerThread * threads);
  const int64_t tasks = threads == 1 ? 1 : std::min<int64_t>(pairs, std::max<int64_t>(many, threads));
  const int64_t chunks = std::max(fitting, tasks);
  const bool one_block = chunks == 1;
  const int64_t kept = one_block ? block : p.steps();
  const PackedX x{
      {shared_scratch->get<uint16_t>(words(kept)), kept, p.step_words()}, lines, one_block, &not_finite};
  if (threads == 1) {
    ColumnRun run(p, x);
    for (int64_t c = 0; c < chunks; ++c) run.multiply(part_of(pairs, c, chunks), c == 0);
    return;
  }
  const int64_t packers = std::min<int64_t>(p.steps(), kTasksPerThread * threads);
  share(threads, packers, [&](int64_t i) { pack_x(p, x, part_of(p.steps(), i, packers)); });
  share(threads, chunks, [&](int64_t c) { ColumnRun(p, x).multiply(part_of(pairs, c, chunks), false); });
}

void by_columns(TileProduct& p, int threads) {
  if (p.y.lines < p.x.lines) p.swap();
  const int64_t line_bytes = 2 * p.steps() * p.step_words() / kBlockLines;
  const int64_t most = std::max<int64_t>(1, kSharedBytes / line_bytes / kBlockLines);
  const int64_t groups = ceil_div(p.panels(), most);
  for (int64_t i = 0; i < groups; ++i) {
    const Range panels = part_of(p.panels(), i, groups);
    columns_of(p, {panels.begin * kBlockLines, std::min(panels.end * kBlockLines, p.x.lines)}, threads);
  }
}

// A few rows of A, packed, times 16 columns of B at a time, which lie in rows.
class FewRows {
 public:
  explicit FewRows(TileProduct& product) : p_(product), tiles_(amx_strips(p_.x.lines)) {
    p_.swap();
    auto* words = shared_scratch->get<uint16_t>(static_cast<size_t>(p_.steps() * tiles_ * kAmxWords));
    rows_ = {words, 2 * kAmxWords, kAmxWords, tiles_ * kAmxWords, 0};
    amx_pack(p_.y.part(0, p_.y.lines, 0, p_.y.k), AmxSide::columns, 1, NotFinite::keep, rows_);
  }

  // Panels of 32 columns of C.
  void multiply(Range panels) {
    BlockWriter out(p_);
    alignas(64) float sums[kAmxLines * kWideStride], turned[2 * kBlockSums];
    auto* edge = private_scratch->get<uint16_t>(static_cast<size_t>(p_.steps() * kAmxWords));
    for (int64_t i = panels.begin; i < panels.end; ++i) {
      const int64_t first = i * kBlockLines, count = std::min(kBlockLines, p_.x.lines - first);
      for (int64_t half = 0; half < count; half += kAmxLines) {
        out.tiles().multiply_wide(block(first + half, edge), static_cast<int>(tiles_), sums);
        for (int64_t t = 0; t < tiles_; ++t)
          transpose_tile(sums + t * kAmxLines, kWideStride, turned + t * kAmxLines * kBlockLines + half,
                         kBlockLines);
      }
      out.finish({0, p_.y.lines, first, count, turned, kBlockLines});
    }
  }

 private:
  TileBlock block(int64_t line, uint16_t* edge) const {
    const int64_t lines = std::min(kAmxLines, p_.x.lines - line), last = (p_.steps() - 1) * kAmxStep;
    const AmxPlaces places{edge, 0, 0, kAmxWords, 0};
    TileBlock b;
    b.steps = p_.steps();
    b.y.first = reinterpret_cast<const char*>(rows_.first), b.y.step = 2 * rows_.step;
    b.x.first = static_cast<const char*>(p_.x.at(line, 0)), b.x.row = 2 * p_.x.line_stride, b.x.step = 64;
    if (lines < kAmxLines) {
      amx_pack(p_.x.part(line, lines, 0, p_.x.k), AmxSide::rows, 1, NotFinite::keep, places);
      b.x = TileOperand{.first = reinterpret_cast<const char*>(edge), .step = kTileBytes};
    } else if (last + kAmxStep > p_.x.k) {
      amx_pack(p_.x.part(line, lines, last, p_.x.k - last), AmxSide::rows, 1, NotFinite::keep, places);
      b.x.last = reinterpret_cast<const char*>(edge);
    }
    return b;
  }

  TileProduct& p_;
  int64_t tiles_;
  AmxPlaces rows_;
};

// Rows that do not lie as tiles want them are packed anew for every chunk of Y, so it should have some pairs.
bool panels_pay(const TileProduct& p) {
  const int64_t fit = kChunkBytes / (2 * p.steps() * p.step_words());
  return in_place(p.x, p) || fit >= std::min<int64_t>(8, p.pairs());
}

bool takes_few(const TileProduct& p) {
  const int64_t m = p.g.m;
  return !p.g.accumulate && in_place(p.y, p) && (m <= 16 || (m <= 64 && p.g.n >= 4 * m));
}

}  // namespace

bool tiles_pay(const GemmArgs<float>& g) { return g.n >= 32 && g.k >= 64; }

void gemm_on_tiles(const EngineArgs& g, PartScheme scheme, TileUnit unit) {
  TileProduct p(g, scheme, unit);
  const int threads = 2 * std::max(g.m, kReadCost) * g.n * g.k < kSerialFlops ? 1 : num_threads();
  if (takes_few(p)) {
    FewRows run(p);
    const int64_t tasks = threads == 1 ? 1 : std::min<int64_t>(p.panels(), kTasksPerThread * threads);
    return share(threads, tasks, [&](int64_t i) { run.multiply(part_of(p.panels(), i, tasks)); });
  }
  const bool ta = g.ta == Transpose::yes, tb = g.tb == Transpose::yes;
  if (ta && tb) p.swap();  // the rows of B are X
  (!ta || tb) && panels_pay(p) ? by_panels(p, threads) : by_columns(p, threads);
}

}  // namespace multihead::kernels
