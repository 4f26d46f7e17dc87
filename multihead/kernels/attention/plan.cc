// Says what a call would do, by asking the code that does it.
#include <algorithm>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"
#include "multihead/kernels/attention/tile_height-inl.h"

namespace multihead::kernels {
namespace {

void reason(AttentionPlan& plan, const std::string& line) { plan.reasons += line + "\n"; }

// The part that a plan looks at: one sample and one key head stand for all that have the same tasks.
struct Sample {
  AttentionProblem problem;
  int64_t copies = 1;
};

Sample sample_of(const AttentionProblem& p) {
  Sample sample{p, p.kv_heads};
  sample.problem.heads = p.group(), sample.problem.kv_heads = std::min<int64_t>(p.kv_heads, 1);
  if (samples_are_alike(p)) {
    sample.copies *= p.batch;
    sample.problem.batch = std::min<int64_t>(p.batch, 1);
  }
  return sample;
}

// Pairs that the analytic masks allow, and pairs in key blocks that some row of their tile sees.
void count_pairs(const AttentionProblem& p, const std::vector<AttentionTask>& tasks, AttentionPlan& plan) {
  RowTile tile;
  for (const AttentionTask& task : tasks) {
    plan.useful_pairs += task.pairs;
    for (int64_t row = task.row_begin; row < task.row_end; row += kTileRows) {
      make_row_tile(p, task.b, task.kv, row, std::min(row + kTileRows, task.row_end), tile);
      if (!tile.empty()) plan.computed_pairs += static_cast<double>(tile.rows) * (tile.end - tile.begin);
    }
  }
}

// How far keys are left out that no query of a tile sees.
struct SkippedKeys {
  int64_t rows, keys;
  bool runs;
};
SkippedKeys skipped_keys(const ForwardCall& call) {
  if (call.on_tiles()) return {kRowTile, kTileChunk, false};
  return {kTileRows, attention_key_block, call.engine == Engine::f32 && !call.terms->relative_value};
}

// The pairs of a tile and the keys [k0, k1) that are allowed, and those that are computed.
void add_seen_pairs(const AttentionProblem& p, const RowTile& t, int k0, int k1, bool runs,
                    std::vector<uint8_t>& keep, AttentionPlan& plan) {
  const KeyRuns seen = seen_keys(p, t, k0, k1, runs, keep.data());
  for (int i = 0; i < seen.count; ++i) {
    const KeyRun& run = seen.run[i];
    plan.computed_pairs += static_cast<double>(t.rows) * (run.end - run.begin);
    for (int row = 0; row < t.rows; ++row) {
      const int from = std::max(run.begin, t.lo[row]), to = std::min(run.end, t.hi[row]);
      for (int k = from; k < to; ++k) {
        plan.useful_pairs +=
            run.partial ? keep[static_cast<size_t>(k - k0) * kTileRows + static_cast<size_t>(row)] : 1;
      }
    }
  }
}

// Counts again with what dense masks and mask functions exclude, unless that would take as long as attention. `tiles`: of
// a task at most; 0 where key blocks are shared out.
void count_seen_pairs(const ForwardCall& call, int64_t tiles, AttentionPlan& plan) {
  const AttentionProblem& p = *call.p;
  constexpr double kMost = 1 << 26;
  if (!call.has_keep) return;
  if (plan.computed_pairs > kMost || (p.keep && !p.keep_classes)) {
    return reason(plan, "pairs are counted without the dense mask and the mask function");
  }
  const SkippedKeys skipped = skipped_keys(call);
  std::vector<AttentionTask> tasks;
  make_tasks(p, std::max<int64_t>(tiles, 1), tasks);
  plan.useful_pairs = plan.computed_pairs = 0;
  std::vector<uint8_t> keep(attention_key_block * kTileRows);
  RowTile tile;
  for (const AttentionTask& task : tasks) {
    const int64_t rows = skipped.runs && tiles > 0 ? tile_height(p, task) : skipped.rows;
    for (int64_t row = task.row_begin; row < task.row_end; row += rows) {
      make_row_tile(p, task.b, task.kv, row, std::min(row + rows, task.row_end), tile);
      for (int64_t k = tile.begin, end = 0; k < tile.end; k = end) {
        end = std::min<int64_t>(tile.end, (k / skipped.keys + 1) * skipped.keys);
        add_seen_pairs(p, tile, static_cast<int>(k), static_cast<int>(end), skipped.runs, keep, plan);
      }
    }
  }
}

void explain_keep(const ForwardCall& call, AttentionPlan& plan) {
  if (!call.has_keep) return;
  const SkippedKeys skipped = skipped_keys(call);
  reason(plan, concat("keys that no query of a tile of ", skipped.rows, " sees are skipped, ",
                      skipped.runs ? int64_t{kRunGrain} : skipped.keys, " at a time",
                      skipped.runs && call.p->mask_function.classify
                          ? "; forward tiles have 16 where narrow blocks make that worth it"
                          : ""));
}

void explain_terms(const AttentionProblem& p, const ScoreTerms& t, int chunk, AttentionPlan& plan) {
  if (t.relative_key) {
    reason(plan, "relative key: a band of distances for 16 queries at a time, in f32 without tiles or pairs");
  }
  if (t.relative_value) {
    reason(plan,
           "relative value: a band of distances for 16 queries at a time, in f32 without tiles or pairs");
  }
  if (t.kinds() != 0) {
    reason(plan, concat("score terms: applied to chunks of ", chunk, " keys while they are in L1"));
  }
  if (t.score_function && !t.score_function.apply_with_derivative) {
    reason(plan, "score function without derivative: no backward pass");
  }
  if (p.keep && !p.keep_classes) reason(plan, "dense mask: its block summary is computed in every call");
  if (p.mask_function && !p.mask_function.classify) {
    reason(plan, "mask function without classify: its flags are made for every block");
  }
  if (p.dropout_p > 0) reason(plan, "dropout: Philox bits made in the softmax pass");
}

// Why keys and values do not stay where they lie.
void explain_copies(const ForwardCall& call, AttentionPlan& plan) {
  const AttentionProblem& p = *call.p;
  const int64_t size = call.bf16 ? sizeof(BFloat16) : sizeof(float);
  if (call.engine == Engine::amx) return reason(plan, "blocks are packed for the tiles");
  if (call.bf16) {
    if (call.engine == Engine::f32) return reason(plan, "blocks are widened to f32");
    reason(plan, "blocks of values are interleaved in pairs of rows");
  }
  if (call.copy_key) {
    reason(plan, concat("keys lie ", call.key.strides.token * size, " bytes apart: blocks are copied"));
  }
  if (!call.copy_value || call.bf16) return;
  reason(plan,
         call.value_columns != p.value_dim
             ? concat("value_dim ", p.value_dim, " is no multiple of 16: blocks are copied and padded")
             : concat("values lie ", call.value.strides.token * size, " bytes apart: blocks are copied"));
}

}  // namespace

AttentionPlan attention_plan(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                             int threads) {
  AttentionPlan plan;
  plan.isa = current_isa();
  plan.key_block = attention_key_block;
  plan.query_tile = kTileRows;
  std::vector<AttentionTask> tasks;
  const auto [sample, copies] = sample_of(p);
  ForwardCall call = make_forward_call(p, t, in, {});
  choose_engine(call);
  decide_copies(call);
  if (call.on_tiles()) plan.query_tile = kRowTile;
  call.p = &sample;
  const int64_t tiles = choose_tiles(call, threads, tasks, copies);
  call.p = &p;
  const bool split = choose_split(p, threads, static_cast<int64_t>(tasks.size()) * copies);
  if (split && tiles > 1) make_tasks(sample, 1, tasks);
  count_pairs(sample, tasks, plan);
  plan.tasks = static_cast<int64_t>(tasks.size()) * copies;
  plan.useful_pairs *= static_cast<double>(copies);
  plan.computed_pairs *= static_cast<double>(copies);
  if (in.query.dtype == Dtype::f64) {
    plan.kernel = "reference f64";
    plan.isa = Isa::baseline;
    plan.tasks = p.batch * p.heads;
    plan.query_tile = plan.key_block = 0;
    reason(plan, "f64 runs the plain loops that specify the fast kernels");
    return plan;
  }
  if (plan.isa == Isa::baseline) {
    plan.kernel = "reference f32";
    plan.query_tile = plan.key_block = 1;
    reason(plan, "no vector instructions above SSE2 (or MULTIHEAD_ISA caps them): plain loops");
    return plan;
  }
  count_seen_pairs(call, split ? 0 : tiles, plan);
  explain_keep(call, plan);
  plan.kernel = concat(split ? "split-key " : "tiled ", call.bf16 ? "bf16" : "f32");
  if (call.engine == Engine::amx) plan.kernel += " on AMX tiles";
  plan.workspace_bytes = forward_scratch(call, split ? 1 : tiles) * threads * 4;
  if (split) {
    const int64_t blocks = (p.keys + attention_key_block - 1) / attention_key_block;
    plan.key_splits = blocks;
    plan.workspace_bytes += plan.tasks * blocks * kTileRows * (call.value_columns + 2) * 4;
    reason(plan, concat("rows fill ", plan.tasks, " tasks for ", threads,
                        " threads: key blocks are shared out too"));
  }
  explain_copies(call, plan);
  explain_terms(p, t, call.on_tiles() ? kTileChunk : 48, plan);
  BackwardCall backward;
  backward.forward = call;
  backward.gradient.d_out.strides.token = p.value_dim;
  decide_backward(backward);
  const int64_t heads = p.batch * p.kv_heads;
  const BackwardPlan heads_plan = plan_backward(backward, heads, threads);
  const int64_t jobs = std::min<int64_t>(heads, heads_plan.alone > 0 ? threads : heads_plan.together);
  plan.backward_workspace_bytes = 4 * (backward_scratch(backward) * threads +
                                       backward_job_floats(backward, p.queries * p.group(), p.keys) * jobs);
  return plan;
}

}  // namespace multihead::kernels
