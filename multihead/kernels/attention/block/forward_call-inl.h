// The call of a forward pass as its targets share it. Internal.
#pragma once

#include <atomic>
#include <cstdint>

#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/attention/schedule-inl.h"
#include "multihead/kernels/cpu/float_environment-inl.h"

namespace multihead::kernels {

/// The unit that multiplies: f32 FMAs, pairs of bf16 (forward only), or AMX tiles; engine-inl.h.
enum class Engine { f32, pairs, amx };

/// Most tiles of a task: its rows share staged keys and values.
inline constexpr int kMostTiles = 16;

/// One forward call on f32 or bf16.
struct ForwardCall : AttentionInput, AttentionOutput {
  const AttentionProblem* p = nullptr;
  const ScoreTerms* terms = nullptr;
  uint64_t number = 0;  // of the call; 0: none
  bool bf16 = false;    // query, key, value and out
  bool int8 = false;    // keys and values are rows of int8_rows.h, always staged
  Engine engine = Engine::f32;
  TileUnit unit = TileUnit::amx;  // Engine::amx: who multiplies, and the parts of operands
  PartScheme scheme;
  bool has_terms = false;  // scores leave the product in natural units and go through the terms
  bool has_keep = false;   // dense mask or mask function
  bool copy_key = false, copy_value = false;  // stage blocks in scratch memory
  int64_t value_columns = 0;                  // value_dim rounded up to 16
  std::atomic<bool>* not_finite = nullptr;    // set where an output is not

  // Whether passes/forward_tiles-inl.h runs it.
  bool on_tiles() const { return engine == Engine::amx; }
};

/// The numbers of score terms and their gradients, of the log-sum-exp.
inline const float* as_floats(const void* x) { return static_cast<const float*>(x); }
inline float* as_floats(void* x) { return static_cast<float*>(x); }

/// Floats of scratch memory that a task of `tiles` tiles needs.
int64_t forward_scratch(const ForwardCall& call, int64_t tiles);

/// Split-key mode: state of every (row of a tile, key block) from zero.
struct ForwardPartials {
  float* out = nullptr;  // [tile][block][kTileRows][value_columns]
  float* max = nullptr;  // [tile][block][kTileRows]
  float* sum = nullptr;
  int64_t blocks = 0;  // per tile, counted from key 0
};

struct ForwardTaskArgs {
  const ForwardCall* call = nullptr;
  const AttentionTask* task = nullptr;
  float* scratch = nullptr;
  const AttentionTask* next = nullptr;        // probably this thread's next task: its queries are prefetched
  const ForwardPartials* partials = nullptr;  // split-key mode
  int64_t block_begin = 0, block_end = 0;     // split-key mode: blocks to do
  int64_t tile = 0;                           // split-key mode: index in the partial buffers
};

/// Computes all rows of a task.
void forward_task(const ForwardTaskArgs& args);
/// Split-key mode: some key blocks of a one-tile task, then their merge.
void forward_partial(const ForwardTaskArgs& args);
void forward_merge(const ForwardTaskArgs& args);

}  // namespace multihead::kernels
