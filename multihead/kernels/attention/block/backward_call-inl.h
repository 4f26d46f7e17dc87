// The call of a backward pass as its targets share it. Internal.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "multihead/kernels/attention/block/forward_call-inl.h"

namespace multihead::kernels {

/// Key blocks of the backward pass, at absolute positions.
inline constexpr int64_t kBackwardBlock = 128;

/// The layout in which an engine wants the operands of its products. Sizes in floats.
struct BackwardOperands {
  // Per tile of rows: columns of the score products, and operands of the key gradients (0: read in place).
  int64_t qt = 0, d_out_t = 0, query = 0, d_out = 0;
  int64_t block = 0;                              // of a key block: staged keys and values, and weights
  bool stage_query = false, stage_d_out = false;  // rows are copied into the job's memory as they are
  bool one_head = false;                          // the rows of a tile are of one head
  bool loses_infinity = false;                    // a sum may be NaN that should be infinite
  bool tiled = false;  // sums lie in tiles of 16 x 16: of d_query [column][query], else [key][column]
};

struct BackwardCall {
  ForwardCall forward;  // inputs and terms
  AttentionGradient gradient;
  int64_t head_columns = 0;  // head_dim rounded up to 16, or to 32 for tiles
  BackwardOperands operands;
};

/// By HeadTerm; null: not wanted.
using HeadSums = std::array<float*, kHeadTerms>;

/// One key head of one sample: all its query rows, prepared once and then used by every key block.
struct BackwardJob {
  int64_t b = 0, kv = 0, rows = 0, tiles = 0, blocks = 0;
  int64_t span = 0, span_tiles = 0;  // tiles do not cross multiples of `span` rows: one head or several whole
  RowTile* row_tiles = nullptr;
  float* qt = nullptr;              // [tile][head_dim][kTileRows] scaled queries, or packed
  float* d_out_t = nullptr;         // [tile][value_dim][kTileRows], or packed
  float* d_query = nullptr;         // [tile][kTileRows][head_columns], not yet scaled
  float* delta = nullptr;           // [tile][kTileRows] ⟨out, d_out⟩ - d_lse
  float* lse = nullptr;             // [tile][kTileRows], +inf for empty rows; beyond `top` if there is one
  float* top = nullptr;             // [tile][kTileRows] what the scores of rows count from
  bool* has_top = nullptr;          // [tile] else scores count from 0
  float* query = nullptr;           // [tile][kTileRows][head_columns] if staged, or packed
  float* d_out = nullptr;           // [tile][kTileRows][value_columns] if staged, or packed
  HeadSums head_sums = {};          // [block][group][HeadGradient::width]
  float* relative_key = nullptr;    // [group][relative_key.span][head_columns], not yet scaled
  float* relative_value = nullptr;  // [group][relative_value.span][value_columns]
  float* captured = nullptr;        // [copies][ScoreFunction::captured], the call's
  std::atomic<int32_t>* turns = nullptr;  // [copies] blocks of this job that have added to a copy
  int64_t copies = 0;
  std::atomic<int32_t>* done = nullptr;  // [tile] key blocks whose share of d_query is in
  std::atomic<int32_t>* turn = nullptr;  // the key block that adds to relative_key and _value next
  std::atomic<bool>* failed = nullptr;   // another task threw: stop waiting
};

/// Decides the layout of the call's operands from the input's strides and types.
void decide_backward(BackwardCall& call);
BackwardOperands backward_operands(const BackwardCall& call);

/// Assigns the key heads of a call, or chains of those that add to the same term gradients, to the threads.
struct BackwardPlan {
  /// So many run on one thread each, which reads a head's rows from its own caches: as many as come out even,
  /// or all where there are so many that it does not matter.
  int64_t alone = 0;
  /// So many of the others at once, on all threads: enough for eight key blocks a thread, fewer if they would
  /// take more memory than they are worth.
  int64_t together = 1;
};
BackwardPlan plan_backward(const BackwardCall& call, int64_t chains, int threads);

/// Floats of a job's memory with `rows` rows and `keys` keys.
int64_t backward_job_floats(const BackwardCall& call, int64_t rows, int64_t keys);
/// Cuts the memory and fills in the sizes.
void place_backward_job(const BackwardCall& call, int64_t b, int64_t kv, float* memory, BackwardJob& job);

/// Whether the gradient of a table of relative keys, or values, is wanted.
bool wants_relative_key(const BackwardCall& call);
bool wants_relative_value(const BackwardCall& call);
/// Parts of the scratch memory: a band of padded rows of the keys' table, or of probabilities, and a key block's own
/// sums of the tables' gradients.
int64_t relative_band_floats(const BackwardCall& call);
int64_t relative_key_sum_floats(const BackwardCall& call);
int64_t relative_value_sum_floats(const BackwardCall& call);
int64_t backward_scratch(const BackwardCall& call);

struct BackwardTaskArgs {
  const BackwardCall* call = nullptr;
  const BackwardJob* job = nullptr;
  int64_t index = 0;         // tile or key block
  float* scratch = nullptr;  // backward_scratch floats
};

/// Packs one tile of rows.
void backward_prepare(const BackwardTaskArgs& args);
/// All rows against one key block: writes d_key and d_value, adds to d_query in order of blocks. False if
/// something is not finite.
bool backward_block(const BackwardTaskArgs& args);
/// Writes d_query of one tile. False if something is not finite.
bool backward_finish(const BackwardTaskArgs& args);

}  // namespace multihead::kernels
