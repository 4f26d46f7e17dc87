// Cuts an attention call into tasks and runs them: rows in parallel, or rows and key blocks when rows are
// few.
#include <algorithm>
#include <atomic>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kBlock = attention_key_block;

// Rows this far apart map to few cache sets or pages, so a task that reads them often copies them.
// Measured: in place loses 20 points at T = 1024, nothing at T <= 128.
bool hostile(int64_t stride, int64_t dim, int64_t size, int64_t keys, int64_t rows) {
  if (stride == dim || rows < kTileRows) return false;
  return keys >= 512 || (keys >= 256 && stride * size % 4096 == 0);
}

struct DriverBuffers {
  std::vector<AttentionTask> tasks;
  std::vector<uint8_t> keep_classes;
  Scratch partials;
};

DriverBuffers& buffers() {
  static thread_local PerThread<DriverBuffers> instance;
  return *instance;
}

float* tile_scratch(int64_t floats) {
  static thread_local PerThread<Scratch> scratch;
  return scratch->get<float>(static_cast<size_t>(floats));
}

// Tiles that may share staged keys and values.
int64_t most_tiles(const ForwardCall& call) {
  if (call.on_tiles()) return kMostTiles;  // packing a block costs as much as half a tile's products
  // Bias rows are prefetched a block early: with several tiles in turn they would be evicted before their
  // use.
  if (call.terms->bias) return 1;
  int64_t tiles = 4;
  if (!(call.bf16 || call.int8)) return tiles;
  // Every task stages its blocks anew (2 % of its time with 4 tiles of d = 64): as many tiles as leave L2
  // room.
  const int64_t floats = kTileRows * (call.p->head_dim + call.value_columns);
  while (tiles < kMostTiles && 2 * tiles * floats <= 65536) tiles *= 2;
  return tiles;
}

// Split-key mode: every task has one tile; its key blocks become tasks of their own.
void run_split(const ForwardCall& call, std::vector<AttentionTask>& tasks, Scratch& memory) {
  const int64_t blocks = (call.p->keys + kBlock - 1) / kBlock, tiles = static_cast<int64_t>(tasks.size());
  const int64_t slots = tiles * blocks;
  ForwardPartials partials;
  partials.blocks = blocks;
  partials.out = memory.get<float>(static_cast<size_t>(slots * kTileRows * (call.value_columns + 2)));
  partials.max = partials.out + slots * kTileRows * call.value_columns;
  partials.sum = partials.max + slots * kTileRows;
  const int64_t scratch = forward_scratch(call, 1);
  const auto args = [&](int64_t tile, int64_t begin, int64_t end) {
    return ForwardTaskArgs{&call, &tasks[tile], tile_scratch(scratch), nullptr, &partials, begin, end, tile};
  };
  // A few blocks at a time so that the queries' packing is amortised and the hardware sees long streams.
  const int64_t chunk = std::clamp<int64_t>(slots / (8 * num_threads()), 1, 8);
  const int64_t chunks = (blocks + chunk - 1) / chunk;
  parallel_for(tiles * chunks, [&](int64_t index, int) {
    const FloatEnvironment environment;
    const int64_t begin = index % chunks * chunk;
    forward_partial(args(index / chunks, begin, std::min(begin + chunk, blocks)));
  });
  parallel_for(tiles, [&](int64_t tile, int) {
    const FloatEnvironment environment;
    forward_merge(args(tile, 0, blocks));
  });
}

}  // namespace

ForwardCall make_forward_call(const AttentionProblem& p, const ScoreTerms& terms, const AttentionInput& in,
                              const AttentionOutput& out) {
  ForwardCall call{in, out};
  call.p = &p;
  call.terms = &terms;
  call.bf16 = in.query.dtype == Dtype::bf16;
  call.int8 = in.key.dtype == Dtype::i32;
  call.has_terms = terms.kinds() != 0;
  call.has_keep = p.keep != nullptr || p.mask_function;
  call.value_columns = padded(p.value_dim);
  return call;
}

bool attention_on_pairs() { return bf16_dots() && current_isa() == Isa::avx512; }

void choose_engine(ForwardCall& call) {
  const MatmulPrecision precision = float32_matmul_precision();
  if (call.int8 || call.terms->relative_key || call.terms->relative_value) return;  // whose bands are in f32
  if (call.terms->weights()) return;  // which may not be rounded as probabilities are
  if (call.bf16 ? bf16_tiles() : has_tiles() && precision != MatmulPrecision::highest) {
    call.engine = Engine::amx;
    if (!call.bf16) call.scheme = part_scheme(precision);
  } else if (call.bf16 && attention_on_pairs()) {
    call.engine = Engine::pairs;
  }
}

void decide_copies(ForwardCall& call) {
  if (call.on_tiles()) call.value_columns = amx_steps(call.p->value_dim) * kAmxStep;
  const AttentionProblem& p = *call.p;
  const int64_t size = call.bf16 ? 2 : 4, rows = p.queries >= kTileRows ? p.queries : p.queries * p.group();
  call.copy_key = call.bf16 || call.int8 || hostile(call.key.strides.token, p.head_dim, size, p.keys, rows);
  call.copy_value = call.bf16 || call.int8 || call.value_columns != p.value_dim ||
                    hostile(call.value.strides.token, p.value_dim, size, p.keys, rows);
  if (call.engine == Engine::pairs) {  // keys are read in pairs where they lie
    const Strides3& k = call.key.strides;
    const bool whole = p.head_dim % 2 == 0 && reinterpret_cast<uintptr_t>(call.key.data) % 4 == 0 &&
                       (k.batch | k.head | k.token) % 2 == 0;
    call.copy_key = !whole || hostile(k.token, p.head_dim, size, p.keys, rows);
  }
}

int64_t choose_tiles(const ForwardCall& call, int threads, std::vector<AttentionTask>& tasks,
                     int64_t copies) {
  for (int64_t tiles = most_tiles(call);; tiles /= 2) {
    make_tasks(*call.p, tiles, tasks);
    if (tiles == 1 || static_cast<int64_t>(tasks.size()) * copies >= 4 * threads) return tiles;
  }
}

bool choose_split(const AttentionProblem& p, int threads, int64_t tasks) {
  return threads > 1 && tasks < 3 * threads && p.keys >= 4 * kBlock;
}

void run_forward(ForwardCall call) {
  DriverBuffers& own = buffers();
  AttentionProblem p = *call.p;
  if (p.keep && !p.keep_classes) {
    own.keep_classes.resize(static_cast<size_t>(attention_keep_classes_size(p)));
    attention_keep_classes(p, own.keep_classes.data());
    p.keep_classes = own.keep_classes.data();
  }
  call.p = &p;
  static std::atomic<uint64_t> calls{0};
  call.number = ++calls;
  decide_copies(call);
  std::atomic<bool> not_finite{false};
  call.not_finite = &not_finite;
  const int64_t tiles = choose_tiles(call, num_threads(), own.tasks);
  if (choose_split(p, num_threads(), static_cast<int64_t>(own.tasks.size()))) {
    if (tiles > 1) make_tasks(p, 1, own.tasks);
    run_split(call, own.tasks, own.partials);
  } else {
    const int64_t scratch = forward_scratch(call, tiles), count = static_cast<int64_t>(own.tasks.size());
    parallel_for(count, [&](int64_t index, int) {  // which gives every thread a run of them
      const FloatEnvironment environment;
      const AttentionTask* task = &own.tasks[index];
      const AttentionTask* next = index + 1 < count ? task + 1 : nullptr;
      forward_task({&call, task, tile_scratch(scratch), next, nullptr, 0, 0, 0});
    });
  }
  if (not_finite.load(std::memory_order_relaxed) && !call.state.values) recompute_overflow(call);
}

}  // namespace multihead::kernels
