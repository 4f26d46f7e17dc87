// Plans the backward pass: a head on each thread where that comes out even, else all threads on the key
// blocks of some heads. Both orders add in the same sequence, so the bits agree.
#include <algorithm>
#include <new>
#include <numeric>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/attention/backward_jobs-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

int64_t pieces(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Shape of one job's rows.
struct JobShape {
  int64_t rows, span, span_tiles, tiles, blocks;
};

JobShape shape_of(const BackwardCall& call, int64_t queries, int64_t keys) {
  JobShape s;
  s.rows = queries * call.forward.p->heads_in_group();
  // A head that fills a tile, or as many whole ones as fit: chains of sums are cut at a head's own positions.
  const bool one = queries >= kTileRows || call.operands.one_head;
  const int64_t heads = one ? 1 : kTileRows / std::max<int64_t>(queries, 1);
  s.span = std::max<int64_t>(queries, 1) * heads;
  s.span_tiles = pieces(s.span, kTileRows);
  s.tiles = pieces(s.rows, s.span) * s.span_tiles;
  s.blocks = pieces(keys, kBackwardBlock);
  return s;
}

// Sizes in floats of the parts of a job's memory.
struct JobLayout {
  int64_t row_tiles, qt, d_out_t, d_query, delta, query, d_out, relative_key, relative_value, done;
  std::array<int64_t, kHeadTerms> head_sums;
  JobLayout(const BackwardCall& call, const JobShape& s) {
    const AttentionProblem& p = *call.forward.p;
    const ScoreTerms& t = *call.forward.terms;
    const int64_t lanes = s.tiles * kTileRows;
    row_tiles = s.tiles * static_cast<int64_t>(sizeof(RowTile) / sizeof(float));
    qt = s.tiles * call.operands.qt;
    d_out_t = s.tiles * call.operands.d_out_t;
    d_query = lanes * call.head_columns;
    delta = lanes;
    query = s.tiles * call.operands.query;
    d_out = s.tiles * call.operands.d_out;
    const auto terms = head_gradients(t, call.gradient);
    for (size_t i = 0; i < terms.size(); ++i) {
      head_sums[i] = terms[i].to ? padded(s.blocks * p.group() * terms[i].width) : 0;
    }
    relative_key = wants_relative_key(call) ? p.group() * t.relative_key.span * call.head_columns : 0;
    relative_value =
        wants_relative_value(call) ? p.group() * t.relative_value.span * call.forward.value_columns : 0;
    done = padded(s.tiles);
  }
  int64_t total() const {
    return row_tiles + qt + d_out_t + d_query + 3 * delta + query + d_out + relative_key + relative_value +
           2 * done + std::accumulate(head_sums.begin(), head_sums.end(), int64_t{0});
  }
};

// Jobs that add to the same term gradients form a chain and run in order.
struct Chains {
  bool batch_shared = false, head_shared = false, key_shared = false;
};

Chains chains_of(const BackwardCall& call) {
  Chains c;
  const ScoreTerms& t = *call.forward.terms;
  const AttentionGradient& g = call.gradient;
  if (g.d_bias && t.bias) {
    c.batch_shared = t.bias_strides.batch == 0;
    c.head_shared = t.bias_strides.head == 0;
    c.key_shared = t.bias_strides.key == 0;
  }
  for (const HeadGradient& term : head_gradients(t, g)) {
    c.batch_shared = c.batch_shared || (term.to && term.batch_stride == 0);
    c.head_shared = c.head_shared || (term.to && term.head_stride == 0);
  }
  c.batch_shared = c.batch_shared || wants_relative_key(call) || wants_relative_value(call);
  if (call.gradient.d_captured) c.batch_shared = c.head_shared = true;
  return c;
}

}  // namespace

bool wants_relative_key(const BackwardCall& call) {
  return call.gradient.d_relative_key != nullptr && call.forward.terms->relative_key;
}

bool wants_relative_value(const BackwardCall& call) {
  return call.gradient.d_relative_value != nullptr && call.forward.terms->relative_value;
}

int64_t backward_job_floats(const BackwardCall& call, int64_t rows, int64_t keys) {
  const AttentionProblem& p = *call.forward.p;
  const int64_t queries = p.group() ? rows / p.group() : 0;
  return JobLayout(call, shape_of(call, queries, keys)).total() + 64;
}

BackwardPlan plan_backward(const BackwardCall& call, int64_t chains, int threads) {
  constexpr int64_t kMemory = int64_t{40} << 20;
  const AttentionProblem& p = *call.forward.p;
  const int64_t bytes = 4 * backward_job_floats(call, p.queries * p.group(), p.keys);
  const int64_t most = std::clamp<int64_t>(kMemory / bytes, 1, threads);
  BackwardPlan plan;
  if (most == threads) {
    const bool ragged = p.sequences || p.key_lengths || p.query_lengths;
    plan.alone = !ragged ? chains / threads * threads : chains >= 4 * threads || threads == 1 ? chains : 0;
  }
  const int64_t blocks = std::max<int64_t>(pieces(p.keys, kBackwardBlock), 1);
  plan.together = std::min(most, pieces(8 * threads, blocks));
  return plan;
}

void place_backward_job(const BackwardCall& call, int64_t b, int64_t kv, float* memory, BackwardJob& job) {
  const AttentionProblem& p = *call.forward.p;
  const JobShape s = shape_of(call, p.query_count(b), p.key_count(b));
  const JobLayout layout(call, s);
  job.b = b, job.kv = kv, job.rows = s.rows, job.tiles = s.tiles, job.blocks = s.blocks;
  job.span = s.span, job.span_tiles = s.span_tiles;
  const auto take = [&memory](int64_t floats) {
    float* at = memory;
    memory += floats;
    return floats ? at : nullptr;
  };
  job.row_tiles = reinterpret_cast<RowTile*>(take(layout.row_tiles));
  job.qt = take(layout.qt);
  job.d_out_t = take(layout.d_out_t);
  job.d_query = take(layout.d_query);
  job.delta = take(layout.delta);
  job.lse = take(layout.delta);
  job.top = take(layout.delta);
  job.query = take(layout.query);
  job.d_out = take(layout.d_out);
  for (size_t i = 0; i < kHeadTerms; ++i) {
    job.head_sums[i] = take(layout.head_sums[i]);
    std::fill_n(job.head_sums[i], layout.head_sums[i], 0.0f);
  }
  job.relative_key = take(layout.relative_key);
  job.relative_value = take(layout.relative_value);
  job.done = reinterpret_cast<std::atomic<int32_t>*>(take(layout.done));
  job.has_top = reinterpret_cast<bool*>(take(layout.done));
  for (int64_t i = 0; i < s.tiles; ++i)
    new (&job.done[i]) std::atomic<int32_t>(0), new (&job.row_tiles[i]) RowTile;
  std::fill_n(job.relative_key, layout.relative_key, 0.0f);
  std::fill_n(job.relative_value, layout.relative_value, 0.0f);
}

int64_t relative_band_floats(const BackwardCall& call) {
  const bool copied = call.forward.terms->relative_key && call.head_columns != call.forward.p->head_dim;
  return std::max(copied ? (kBackwardBlock + kGroupRows) * call.head_columns : 0,
                  wants_relative_value(call) ? kGroupRows * (kBackwardBlock + 4 * kGroupRows) : 0);
}

namespace {
int64_t sum_floats(const BackwardCall& call, const RelativeTable& table, int64_t columns) {
  const AttentionProblem& p = *call.forward.p;
  return p.group() * std::min(table.span, p.queries + kBackwardBlock) * columns;
}
}  // namespace

int64_t relative_key_sum_floats(const BackwardCall& call) {
  return wants_relative_key(call) ? sum_floats(call, call.forward.terms->relative_key, call.head_columns) : 0;
}

int64_t relative_value_sum_floats(const BackwardCall& call) {
  const ForwardCall& c = call.forward;
  return wants_relative_value(call) ? sum_floats(call, c.terms->relative_value, c.value_columns) : 0;
}

int64_t backward_scratch(const BackwardCall& call) {
  const int64_t size = kBackwardBlock * kTileRows;
  const int64_t prepare = kTileRows * std::max(2 * call.forward.value_columns, call.head_columns);
  const int64_t blocks = call.gradient.d_captured ? 5 : 4;
  return std::max(blocks * size + size / 4 + call.operands.block +
                      kBackwardBlock * (call.head_columns + call.forward.value_columns) +
                      relative_band_floats(call) + relative_key_sum_floats(call) +
                      relative_value_sum_floats(call),
                  prepare);
}

void decide_backward(BackwardCall& call) {
  ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  if (c.engine == Engine::pairs) c.engine = Engine::f32;
  decide_copies(c);
  call.head_columns = c.on_tiles() ? amx_steps(p.head_dim) * kAmxStep : padded(p.head_dim);
  c.copy_key = c.copy_key || call.head_columns != p.head_dim;
  call.operands = backward_operands(call);
}

void run_backward(BackwardCall call) {
  AttentionProblem p = *call.forward.p;
  static thread_local PerThread<std::vector<uint8_t>> kept_classes;
  std::vector<uint8_t>& classes = *kept_classes;
  if (p.keep && !p.keep_classes) {
    classes.resize(static_cast<size_t>(attention_keep_classes_size(p)));
    attention_keep_classes(p, classes.data());
    p.keep_classes = classes.data();
  }
  call.forward.p = &p;
  decide_backward(call);
  zero_score_gradients<float>(p, *call.forward.terms, call.gradient);
  const Chains shared = chains_of(call);
  const int64_t batch_chains = shared.batch_shared ? std::min<int64_t>(p.batch, 1) : p.batch;
  const int64_t head_chains = shared.head_shared ? std::min<int64_t>(p.kv_heads, 1) : p.kv_heads;
  const int64_t chains = batch_chains * head_chains;
  if (chains == 0) return;
  const int64_t batches = p.batch / batch_chains, heads = p.kv_heads / head_chains;
  CapturedSums captured(call);
  // The n-th job of a chain.
  const auto job = [&](int64_t chain, int64_t n) {
    return HeadOfSample{chain / head_chains * batches + n / heads, chain % head_chains * heads + n % heads};
  };
  const int64_t jobs = batches * heads;
  const int threads = num_threads();
  BackwardPlan plan = plan_backward(call, chains, threads);
  if (shared.key_shared) plan.alone = chains;
  parallel_for(plan.alone, [&](int64_t chain, int) {
    for (int64_t n = 0; n < jobs; ++n) run_backward_job(call, job(chain, n), captured);
  });
  std::vector<HeadOfSample> together;
  for (int64_t first = plan.alone; first < chains; first += plan.together) {
    for (int64_t n = 0; n < jobs; ++n) {
      together.clear();
      for (int64_t c = first; c < std::min(first + plan.together, chains); ++c) together.push_back(job(c, n));
      run_backward_jobs(call, together, captured);
    }
  }
  captured.add();
}

}  // namespace multihead::kernels
