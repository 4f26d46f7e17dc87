// Runs the backward pass: whole heads in parallel where there are enough, else the key blocks of one head at
// a time. Both orders add in the same sequence, so the bits agree.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "multihead/core/parallel.h"
#include "multihead/kernels/attention/backward-inl.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"

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
  int64_t row_tiles, qt, d_out_t, d_query, delta, query, d_out, relative, alibi, relative_key, done;
  JobLayout(const BackwardCall& call, const JobShape& s) {
    const AttentionProblem& p = *call.forward.p;
    const ScoreTerms& t = *call.forward.terms;
    const int64_t lanes = s.tiles * kTileRows;
    const AttentionGradient& g = call.gradient;
    row_tiles = s.tiles * static_cast<int64_t>(sizeof(RowTile) / sizeof(float));
    qt = s.tiles * call.operands.qt;
    d_out_t = s.tiles * call.operands.d_out_t;
    d_query = lanes * call.head_columns;
    delta = lanes;
    query = s.tiles * call.operands.query;
    d_out = s.tiles * call.operands.d_out;
    relative = g.d_relative_bias && t.relative_bias ? padded(s.blocks * p.group() * t.relative_span) : 0;
    alibi = g.d_alibi_slopes && t.alibi_slopes ? padded(s.blocks * p.group()) : 0;
    relative_key = wants_relative_key(call) ? p.group() * t.relative_key.span * call.head_columns : 0;
    done = padded(s.tiles);
  }
  int64_t total() const {
    return row_tiles + qt + d_out_t + d_query + 2 * delta + query + d_out + relative + alibi + relative_key +
           done;
  }
};

float* worker_scratch(int64_t floats) {
  static thread_local Scratch scratch;
  return scratch.get<float>(static_cast<size_t>(floats));
}
float* job_memory(int64_t floats) {
  static thread_local Scratch scratch;
  return scratch.get<float>(static_cast<size_t>(floats));
}

// The head's private sums of d_relative_bias and d_alibi_slopes, block after block; its sum of
// d_relative_key.
void add_term_gradients(const BackwardCall& call, const BackwardJob& job) {
  const AttentionProblem& p = *call.forward.p;
  const ScoreTerms& t = *call.forward.terms;
  const AttentionGradient& g = call.gradient;
  const int64_t group = p.group();
  if (job.relative_key) {
    const int64_t count = group * t.relative_key.span * p.head_dim;
    float* to = as_floats(g.d_relative_key) + job.kv * count;
    for (int64_t i = 0; i < count; ++i) to[i] += job.relative_key[i];
  }
  for (int64_t n = 0; n < job.blocks; ++n) {
    for (int64_t i = 0; i < group; ++i) {
      const int64_t h = job.kv * group + i;
      if (job.relative) {
        const float* from = job.relative + (n * group + i) * t.relative_span;
        float* to = as_floats(g.d_relative_bias) + h * t.relative_stride;
        for (int64_t d = 0; d < t.relative_span; ++d) to[d] += from[d];
      }
      if (job.alibi) {
        const int64_t at = job.b * t.alibi_batch_stride + h * t.alibi_stride;
        as_floats(g.d_alibi_slopes)[at] += job.alibi[n * group + i];
      }
    }
  }
}

// The sums of d_relative_key become [group, span, head_dim], scaled.
void scale_relative_key(const BackwardCall& call, const BackwardJob& job) {
  const AttentionProblem& p = *call.forward.p;
  const auto scale = static_cast<float>(p.scale);
  for (int64_t row = 0; row < p.group() * call.forward.terms->relative_key.span; ++row) {
    const float* from = job.relative_key + row * call.head_columns;
    float* to = job.relative_key + row * p.head_dim;
    for (int64_t c = 0; c < p.head_dim; ++c) to[c] = scale * from[c];
  }
}

// Repeats one key head by the specification, which touches nothing that is excluded. The gradient of a
// relative key, which sums products with queries, is the job's again, scaled; those of the other terms stand.
void repeat_by_specification(const BackwardCall& call, const BackwardJob& job) {
  float* d_relative_key = nullptr;
  if (job.relative_key) {
    const AttentionProblem& p = *call.forward.p;
    const int64_t floats = p.group() * call.forward.terms->relative_key.span * p.head_dim;
    std::fill_n(job.relative_key, floats, 0.0f);
    d_relative_key = job.relative_key - job.kv * floats;
  }
  recompute_gradients(call, job.b, job.kv, d_relative_key);
}

// Weights 1/Tk of empty rows reach d_value.
template <class T>
void add_uniform_rows(const BackwardCall& call, const BackwardJob& job) {
  const AttentionGradient& g = call.gradient;
  const AttentionProblem& p = *call.forward.p;
  const int64_t n = p.key_count(job.b);
  const float keep_scale = p.dropout_p < 1 ? static_cast<float>(1 / (1 - p.dropout_p)) : 0.0f;
  for (int64_t tile = 0; g.d_value && tile < job.tiles; ++tile) {
    const RowTile& t = job.row_tiles[tile];
    for (int r = 0; r < t.rows; ++r) {
      if (job.lse[tile * kTileRows + r] != std::numeric_limits<float>::infinity()) continue;
      const T* d_out = row_of<T>(g.d_out, job.b, t.head[r], p.query_begin(job.b) + t.query[r]);
      for (int64_t k = 0; k < n; ++k) {
        const bool kept = p.dropout_p <= 0 ||
                          attention_dropout_keep(p.dropout_key, job.b, t.head[r], t.query[r], k, p.dropout_p);
        if (!kept) continue;
        const float weight = (p.dropout_p > 0 ? keep_scale : 1.0f) / static_cast<float>(n);
        T* d_value = row_of<T>(g.d_value, job.b, job.kv, p.key_begin_row(job.b) + k);
        for (int64_t c = 0; c < p.value_dim; ++c) {
          d_value[c] = T(static_cast<float>(d_value[c]) + weight * static_cast<float>(d_out[c]));
        }
      }
    }
  }
}

bool anything_masked(const AttentionProblem& p, const ScoreTerms& t) {
  return p.causal || p.window_left >= 0 || p.window_right >= 0 || p.key_lengths || p.query_lengths ||
         p.key_begin || p.key_end || p.keep || p.mask_function || t.bias || t.relative_key;
}

// Sums of the gradients of what a score function captured: key block n of any head adds to copy n % count,
// block after block. So the order depends on the table's size and the key's position alone.
class CapturedSums {
 public:
  explicit CapturedSums(const BackwardCall& call) : to_(as_floats(call.gradient.d_captured)) {
    constexpr int64_t kMost = 8, kFloats = int64_t{1} << 21;  // 8 MiB, or one copy of a larger table
    if (to_ == nullptr) return;
    size_ = call.forward.terms->score_function.captured;
    count_ = std::clamp<int64_t>(kFloats / std::max<int64_t>(size_, 1), 1, kMost);
    sums_.assign(static_cast<size_t>(count_ * size_), 0.0f);
    turns_ = std::vector<std::atomic<int32_t>>(static_cast<size_t>(count_));
  }
  void lend(BackwardJob& job) {
    if (to_ == nullptr) return;
    for (auto& turn : turns_) turn.store(0, std::memory_order_relaxed);
    job.captured = sums_.data(), job.turns = turns_.data(), job.copies = count_;
  }
  void add() const {
    for (int64_t n = 0; n < count_; ++n) {
      const float* from = sums_.data() + n * size_;
      for (int64_t i = 0; i < size_; ++i) to_[i] += from[i];
    }
  }

 private:
  float* to_;
  int64_t size_ = 0, count_ = 0;
  std::vector<float> sums_;
  std::vector<std::atomic<int32_t>> turns_;
};

// One key head. `parallel`: its tiles and key blocks run on all threads.
void run_job(const BackwardCall& call, int64_t b, int64_t kv, bool parallel, CapturedSums& captured) {
  const AttentionProblem& p = *call.forward.p;
  BackwardJob job;
  place_backward_job(
      call, b, kv, job_memory(backward_job_floats(call, p.query_count(b) * p.group(), p.key_count(b))), job);
  std::atomic<bool> failed{false}, finite{true};
  std::atomic<int32_t> turn{0};
  job.failed = &failed, job.turn = &turn;
  captured.lend(job);
  const int64_t scratch = backward_scratch(call);
  const auto each = [&](int64_t count, auto&& f) {
    // In order: a key block waits for those before it, and threads would begin with far ones.
    std::atomic<int64_t> next{0};
    const auto body = [&](int64_t, int) {
      const FloatEnvironment environment;
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      try {
        if (!f(BackwardTaskArgs{&call, &job, index, worker_scratch(scratch)})) finite = false;
      } catch (...) {
        failed = true;
        throw;
      }
    };
    if (parallel) return parallel_for(count, body);
    for (int64_t i = 0; i < count; ++i) body(i, 0);
  };
  each(job.tiles, [](const BackwardTaskArgs& args) {
    backward_prepare(args);
    return true;
  });
  each(job.blocks, [](const BackwardTaskArgs& args) { return backward_block(args); });
  each(job.tiles, [](const BackwardTaskArgs& args) { return backward_finish(args); });
  if (job.relative_key) scale_relative_key(call, job);
  if (call.gradient.partial) return;
  if (!finite && (call.operands.loses_infinity || anything_masked(p, *call.forward.terms))) {
    repeat_by_specification(call, job);
  } else if (p.empty_row == EmptyRow::uniform) {
    call.forward.bf16 ? add_uniform_rows<BFloat16>(call, job) : add_uniform_rows<float>(call, job);
  }
  add_term_gradients(call, job);
}

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
  if (g.d_relative_bias) {
    c.batch_shared = true;
    c.head_shared = c.head_shared || t.relative_stride == 0;
  }
  c.batch_shared = c.batch_shared || wants_relative_key(call);
  if (call.gradient.d_captured) c.batch_shared = c.head_shared = true;
  if (g.d_alibi_slopes) {
    c.batch_shared = c.batch_shared || t.alibi_batch_stride == 0;
    c.head_shared = c.head_shared || t.alibi_stride == 0;
  }
  return c;
}

}  // namespace

bool wants_relative_key(const BackwardCall& call) {
  return call.gradient.d_relative_key != nullptr && call.forward.terms->relative_key;
}

int64_t backward_job_floats(const BackwardCall& call, int64_t rows, int64_t keys) {
  const AttentionProblem& p = *call.forward.p;
  const int64_t queries = p.group() ? rows / p.group() : 0;
  return JobLayout(call, shape_of(call, queries, keys)).total() + 64;
}

bool heads_one_by_one(const BackwardCall& call, int threads) {
  constexpr int64_t kMemory = int64_t{40} << 20;
  const AttentionProblem& p = *call.forward.p;
  return 4 * threads * backward_job_floats(call, p.queries * p.group(), p.keys) > kMemory;
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
  job.query = take(layout.query);
  job.d_out = take(layout.d_out);
  job.relative = take(layout.relative);
  job.alibi = take(layout.alibi);
  job.relative_key = take(layout.relative_key);
  job.done = reinterpret_cast<std::atomic<int32_t>*>(take(layout.done));
  for (int64_t i = 0; i < s.tiles; ++i)
    new (&job.done[i]) std::atomic<int32_t>(0), new (&job.row_tiles[i]) RowTile;
  std::fill_n(job.relative, layout.relative, 0.0f);
  std::fill_n(job.alibi, layout.alibi, 0.0f);
  std::fill_n(job.relative_key, layout.relative_key, 0.0f);
}

int64_t relative_band_floats(const BackwardCall& call) {
  const bool copied = call.forward.terms->relative_key && call.head_columns != call.forward.p->head_dim;
  return copied ? (kBackwardBlock + kGroupRows) * call.head_columns : 0;
}

int64_t relative_sum_floats(const BackwardCall& call) {
  if (!wants_relative_key(call)) return 0;
  const AttentionProblem& p = *call.forward.p;
  const int64_t rows = std::min(call.forward.terms->relative_key.span, p.queries + kBackwardBlock);
  return p.group() * rows * call.head_columns;
}

int64_t backward_scratch(const BackwardCall& call) {
  const int64_t size = kBackwardBlock * kTileRows;
  const int64_t prepare = kTileRows * std::max(2 * call.forward.value_columns, call.head_columns);
  const int64_t blocks = call.gradient.d_captured ? 5 : 4;
  return std::max(blocks * size + size / 4 + call.operands.block +
                      kBackwardBlock * (call.head_columns + call.forward.value_columns) +
                      relative_band_floats(call) + relative_sum_floats(call),
                  prepare);
}

void decide_backward(BackwardCall& call) {
  ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  if (c.engine == Engine::pairs) c.engine = Engine::f32;
  decide_copies(c);
  call.head_columns = padded(p.head_dim);
  c.copy_key = c.copy_key || call.head_columns != p.head_dim;
  call.operands = backward_operands(call);
}

void run_backward(BackwardCall call) {
  AttentionProblem p = *call.forward.p;
  static thread_local std::vector<uint8_t> classes;
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
  const auto chain = [&](int64_t index, bool parallel) {
    const int64_t b0 = index / head_chains * batches, h0 = index % head_chains * heads;
    for (int64_t b = b0; b < b0 + batches; ++b) {
      for (int64_t h = h0; h < h0 + heads; ++h) run_job(call, b, h, parallel, captured);
    }
  };
  const int threads = num_threads();
  const bool even = chains % threads == 0 || chains >= 4 * threads;
  if (threads == 1 || shared.key_shared || (even && !heads_one_by_one(call, threads))) {
    parallel_for(chains, [&](int64_t index, int) { chain(index, false); });
  } else {
    for (int64_t index = 0; index < chains; ++index) chain(index, true);
  }
  captured.add();
}

}  // namespace multihead::kernels
