// A key head goes through three phases: its tiles of queries are prepared, its key blocks run, its query
// gradients are written. On several threads the key blocks of several heads are one region: eight heads of
// 1,024 keys are 64 tasks for 16 threads, where a head at a time was 8.
#include "multihead/kernels/attention/backward_jobs-inl.h"

#include <limits>

#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/attention/reference-inl.h"
#include "multihead/kernels/cpu/float_environment-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"

namespace multihead::kernels {
namespace {

float* worker_scratch(int64_t floats) {
  static thread_local PerThread<Scratch> scratch;
  return scratch->get<float>(static_cast<size_t>(floats));
}
float* job_memory(int64_t floats) {
  static thread_local PerThread<Scratch> scratch;
  return scratch->get<float>(static_cast<size_t>(floats));
}

// f(sums of the head, its table, the table's gradient, numbers in a row, in a row of the sums, factor) for each table of
// vectors whose gradient is wanted.
template <class Body>
void each_table(const BackwardCall& call, const BackwardJob& job, const Body& f) {
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  if (job.relative_key) {
    f(job.relative_key, c.terms->relative_key, as_floats(call.gradient.d_relative_key), p.head_dim,
      call.head_columns, static_cast<float>(p.scale));
  }
  if (job.relative_value) {
    f(job.relative_value, c.terms->relative_value, as_floats(call.gradient.d_relative_value), p.value_dim,
      c.value_columns, 1.0f);
  }
}

// The head's private sums of the terms' gradients, block after block; its sums of the tables of vectors.
void add_term_gradients(const BackwardCall& call, const BackwardJob& job) {
  const int64_t group = call.forward.p->group();
  each_table(call, job,
             [&](const float* sums, const RelativeTable& table, float* to, int64_t dim, int64_t, float) {
               const int64_t count = group * table.span * dim;
               for (int64_t i = 0; i < count; ++i) to[job.kv * count + i] += sums[i];
             });
  const auto terms = head_gradients(*call.forward.terms, call.gradient);
  for (size_t term = 0; term < kHeadTerms; ++term) {
    const HeadGradient& x = terms[term];
    for (int64_t i = 0; x.to && i < job.blocks * group; ++i) {
      const int64_t head = job.kv * group + i % group;
      float* to = as_floats(x.to) + job.b * x.batch_stride + head * x.head_stride;
      for (int64_t d = 0; d < x.width; ++d) to[d] += job.head_sums[term][i * x.width + d];
    }
  }
}

// The sums of the tables become [group, span, dim], scaled.
void scale_tables(const BackwardCall& call, const BackwardJob& job) {
  each_table(call, job,
             [&](float* sums, const RelativeTable& table, float*, int64_t dim, int64_t columns, float scale) {
               for (int64_t row = 0; row < call.forward.p->group() * table.span; ++row) {
                 for (int64_t c = 0; c < dim; ++c) sums[row * dim + c] = scale * sums[row * columns + c];
               }
             });
}

// Repeats one key head by the specification, which touches nothing that is excluded. The gradients of tables of
// vectors, which sum products with queries or d_out, are the job's again, scaled; those of the other terms stand.
void repeat_by_specification(const BackwardCall& call, const BackwardJob& job) {
  float *d_key = nullptr, *d_value = nullptr;
  each_table(call, job, [&](float* sums, const RelativeTable& table, float*, int64_t dim, int64_t, float) {
    const int64_t floats = call.forward.p->group() * table.span * dim;
    std::fill_n(sums, floats, 0.0f);
    (sums == job.relative_key ? d_key : d_value) = sums - job.kv * floats;
  });
  recompute_gradients(call, job.b, job.kv, d_key, d_value);
}

// Weights 1/Tk of empty rows reach d_value.
template <class T, class U>
void add_uniform_rows(const BackwardCall& call, const BackwardJob& job) {
  const AttentionGradient& g = call.gradient;
  const AttentionProblem& p = *call.forward.p;
  const int64_t n = p.key_count(job.b);
  const float keep_scale = p.dropout_p < 1 ? static_cast<float>(1 / (1 - p.dropout_p)) : 0.0f;
  for (int64_t tile = 0; g.d_value && tile < job.tiles; ++tile) {
    const RowTile& t = job.row_tiles[tile];
    for (int r = 0; r < t.rows; ++r) {
      if (job.lse[tile * kTileRows + r] != std::numeric_limits<float>::infinity()) continue;
      const U* d_out = row_of<U>(g.d_out, job.b, t.head[r], p.query_begin(job.b) + t.query[r]);
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

void add_uniform_rows(const BackwardCall& call, const BackwardJob& job) {
  const auto of = [&](auto zero) {
    using T = decltype(zero);
    call.gradient.d_out.dtype == Dtype::bf16 ? add_uniform_rows<T, BFloat16>(call, job)
                                             : add_uniform_rows<T, float>(call, job);
  };
  call.gradient.d_value.dtype == Dtype::bf16 ? of(BFloat16()) : of(0.0f);
}

bool anything_masked(const AttentionProblem& p, const ScoreTerms& t) {
  return p.causal || p.window_left >= 0 || p.window_right >= 0 || p.key_lengths || p.query_lengths ||
         p.key_begin || p.key_end || p.keep || p.mask_function || t.bias || t.relative_key ||
         t.relative_value;
}

// A key head on its way.
struct RunningJob {
  BackwardJob job;
  std::atomic<bool> finite{true};
  std::atomic<int32_t> turn{0};
};

// A tile or a key block.
struct PartOfJob {
  int64_t job, index;
};

std::vector<PartOfJob> tiles_of(std::span<const RunningJob> jobs) {
  std::vector<PartOfJob> parts;
  for (size_t j = 0; j < jobs.size(); ++j) {
    for (int64_t n = 0; n < jobs[j].job.tiles; ++n) parts.push_back({static_cast<int64_t>(j), n});
  }
  return parts;
}

// The job with the most key blocks left goes next: threads spread over the jobs before they meet in one,
// where a block waits at each tile for the block before it.
std::vector<PartOfJob> key_blocks_of(std::span<const RunningJob> jobs) {
  std::vector<PartOfJob> parts;
  int64_t most = 0;
  for (const RunningJob& running : jobs) most = std::max(most, running.job.blocks);
  for (int64_t left = most; left > 0; --left) {
    for (size_t j = 0; j < jobs.size(); ++j) {
      const int64_t blocks = jobs[j].job.blocks;
      if (blocks >= left) parts.push_back({static_cast<int64_t>(j), blocks - left});
    }
  }
  return parts;
}

class JobsRun {
 public:
  JobsRun(const BackwardCall& call, std::span<const HeadOfSample> heads, CapturedSums& captured)
      : call_(call), more_(heads.size() == 1 ? 0 : heads.size()), scratch_(backward_scratch(call)) {
    const auto floats = [&](const HeadOfSample& head) {
      const AttentionProblem& p = *call.forward.p;
      return padded(backward_job_floats(call, p.query_count(head.b) * p.group(), p.key_count(head.b)));
    };
    jobs_ = heads.size() == 1 ? std::span(&one_, 1) : std::span(more_);
    int64_t all = 0;
    for (const HeadOfSample& head : heads) all += floats(head);
    float* memory = job_memory(all);
    for (size_t j = 0; j < heads.size(); ++j) {
      RunningJob& running = jobs_[j];
      place_backward_job(call, heads[j].b, heads[j].kv, memory, running.job);
      running.job.failed = &failed_, running.job.turn = &running.turn;
      captured.lend(running.job);
      memory += floats(heads[j]);
    }
  }

  void run_alone() {
    for (RunningJob& running : jobs_) {
      for (int64_t n = 0; n < running.job.tiles; ++n) run_part(running, n, prepare);
      for (int64_t n = 0; n < running.job.blocks; ++n) run_part(running, n, backward_block);
      for (int64_t n = 0; n < running.job.tiles; ++n) run_part(running, n, backward_finish);
      end(running);
    }
  }

  void run_together() {
    const std::vector<PartOfJob> tiles = tiles_of(jobs_);
    each(tiles, prepare);
    each(key_blocks_of(jobs_), backward_block);
    each(tiles, backward_finish);
    for (RunningJob& running : jobs_) end(running);
  }

 private:
  using Phase = bool (*)(const BackwardTaskArgs&);

  static bool prepare(const BackwardTaskArgs& args) {
    backward_prepare(args);
    return true;
  }

  void run_part(RunningJob& running, int64_t index, Phase phase) const {
    if (!phase({&call_, &running.job, index, worker_scratch(scratch_)})) running.finite = false;
  }

  void each(const std::vector<PartOfJob>& parts, Phase phase) {
    // In order: a key block waits for those before it, and threads would begin with far ones.
    std::atomic<size_t> next{0};
    parallel_for(static_cast<int64_t>(parts.size()), [&](int64_t, int) {
      const FloatEnvironment environment;
      const PartOfJob& part = parts[next.fetch_add(1, std::memory_order_relaxed)];
      try {
        run_part(jobs_[static_cast<size_t>(part.job)], part.index, phase);
      } catch (...) {
        failed_ = true;
        throw;
      }
    });
  }

  void end(RunningJob& running) const {
    const AttentionProblem& p = *call_.forward.p;
    const BackwardJob& job = running.job;
    scale_tables(call_, job);
    if (call_.gradient.partial) return;
    if (!running.finite && (call_.operands.loses_infinity || anything_masked(p, *call_.forward.terms))) {
      repeat_by_specification(call_, job);
    } else if (p.empty_row == EmptyRow::uniform) {
      add_uniform_rows(call_, job);
    }
    add_term_gradients(call_, job);
  }

  const BackwardCall& call_;
  RunningJob one_;  // the usual case needs no memory
  std::vector<RunningJob> more_;
  std::span<RunningJob> jobs_;
  const int64_t scratch_;
  std::atomic<bool> failed_{false};
};

}  // namespace

void run_backward_job(const BackwardCall& call, HeadOfSample head, CapturedSums& captured) {
  const FloatEnvironment environment;
  JobsRun(call, {&head, 1}, captured).run_alone();
}

void run_backward_jobs(const BackwardCall& call, std::span<const HeadOfSample> heads,
                       CapturedSums& captured) {
  JobsRun(call, heads, captured).run_together();
}

}  // namespace multihead::kernels
