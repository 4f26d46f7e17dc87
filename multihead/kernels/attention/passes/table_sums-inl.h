// Gradients of tables of vectors per distance: each key block sums its own rows, and the blocks' sums are added in order.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_TABLE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_TABLE_SUMS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_TABLE_SUMS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_TABLE_SUMS_INL_H_
#endif

#include <algorithm>
#include <atomic>
#include <thread>

#include "multihead/kernels/attention/block/relative-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// Waits until `count` earlier blocks have done their part. False if another task failed.
bool Await(const BackwardJob& job, const std::atomic<int32_t>& done, int64_t count) {
  for (int spins = 0; done.load(std::memory_order_acquire) != count; ++spins) {
    if (job.failed->load(std::memory_order_relaxed)) return false;
    if (spins > 64) std::this_thread::yield();
  }
  return true;
}

// Rows of a table that a key block meets, and the block's sums of them.
struct RelativeRange {
  int64_t first = 0, rows = 0, columns = 0;
  float* sums = nullptr;  // null: its gradient is not wanted
  float* all = nullptr;   // the job's
};

RelativeRange RelativeRangeOf(const BackwardCall& call, const BackwardJob& job, const RelativeTable& table,
                              int64_t columns, float* all, float* sums, int k0, int k1) {
  if (!all) return {};
  const AttentionProblem& p = *call.forward.p;
  const int64_t offset = table.center - p.diagonal_of(job.b), last = table.span - 1;
  const int64_t first = std::clamp<int64_t>(k0 + offset - (p.query_count(job.b) - 1), 0, last);
  const int64_t rows = std::clamp<int64_t>(k1 - 1 + offset, 0, last) + 1 - first;
  std::fill_n(sums, p.group() * rows * columns, 0.0f);
  return {first, rows, columns, sums, all};
}

// Adds a block's sums to the job's once all earlier blocks have: one order, whoever computes them. False if
// something is not finite.
bool SumTables(const BackwardCall& call, const BackwardJob& job, int64_t block, const RelativeRange& keys,
               const RelativeRange& values) {
  if (!keys.sums && !values.sums) return true;
  const F d;
  if (!Await(job, *job.turn, block)) return true;
  Vec check = hn::Zero(d);
  for (const RelativeRange* range : {&keys, &values}) {
    if (!range->sums) continue;
    const ScoreTerms& terms = *call.forward.terms;
    const int64_t span = range == &keys ? terms.relative_key.span : terms.relative_value.span;
    const int64_t columns = range->columns;
    for (int64_t g = 0; g < call.forward.p->group(); ++g) {
      const float* from = range->sums + g * range->rows * columns;
      float* to = range->all + (g * span + range->first) * columns;
      for (int64_t i = 0; i < range->rows * columns; i += kN) {
        const Vec x = hn::LoadU(d, from + i);
        check = hn::MulAdd(x, hn::Zero(d), check);
        hn::StoreU(hn::Add(hn::LoadU(d, to + i), x), d, to + i);
      }
    }
  }
  job.turn->store(static_cast<int32_t>(block + 1), std::memory_order_release);
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
