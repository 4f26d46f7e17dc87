// Measures options over the bare kernel, and the op over the kernel: one thread, interleaved by repetition.
//   ops_bench --benchmark_filter=Attention --benchmark_enable_random_interleaving --benchmark_repetitions=20
#include <benchmark/benchmark.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/attention.h"

namespace multihead {
namespace {

constexpr int64_t kHeads = 2, kLength = 1024, kDim = 64;

struct Setup {
  Rng rng{1};
  Tensor q = randn({1, kHeads, kLength, kDim}, rng), k = randn({1, kHeads, kLength, kDim}, rng);
  Tensor v = randn({1, kHeads, kLength, kDim}, rng), seed = randn({1, kHeads, kLength, kDim}, rng);
  Setup() { set_num_threads(1); }
};

enum Kind { bare, alibi, alibi_by_hand, capped, capped_by_hand, dropout, bias };

void run(benchmark::State& state, bool backward) {
  Setup s;
  const auto kind = static_cast<Kind>(state.range(0));
  const std::vector<float> slope = {0.5f, 0.25f};
  AttentionOptions options = {.mask = causal()};
  ScoreMod mod;
  if (kind == alibi) options.alibi_slopes = Tensor::of<float>({2}, slope);
  if (kind == alibi_by_hand) {
    mod = score_mod([slope](auto score, ScoreIndex at) {
      return score - slope[static_cast<size_t>(at.head)] * static_cast<float>(at.query - at.key);
    });
  }
  if (kind == capped) options.softcap = 20;
  if (kind == capped_by_hand) {
    mod = score_mod([](auto score, ScoreIndex) {
      const auto x = score * 0.05f;
      return 20.0f * x / (1.0f + x * x * 0.33f);  // a rational cap, as tanh calls do not vectorise
    });
  }
  if (kind == dropout) {
    options.dropout_p = 0.1f;
    options.rng = &s.rng;
  }
  if (kind == bias) options.bias = randn({kHeads, kLength, kLength}, s.rng);
  if (backward) s.q.set_requires_grad(), s.k.set_requires_grad(), s.v.set_requires_grad();
  for (auto _ : state) {
    if (backward) {
      for (Tensor* x : {&s.q, &s.k, &s.v}) x->set_grad({});
      Tape tape;
      tape.backward(attention(s.q, s.k, s.v, options, mod), s.seed);
    } else {
      benchmark::DoNotOptimize(attention(s.q, s.k, s.v, options, mod).raw());
    }
  }
  const double pairs = kHeads * kLength * (kLength + 1) / 2.0;
  state.counters["GFLOP/s"] = benchmark::Counter(pairs * kDim * (backward ? 14 : 4) * 1e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void AttentionForward(benchmark::State& state) { run(state, false); }
void AttentionForwardBackward(benchmark::State& state) { run(state, true); }

BENCHMARK(AttentionForward)->DenseRange(bare, bias)->Unit(benchmark::kMicrosecond);
BENCHMARK(AttentionForwardBackward)->DenseRange(bare, bias)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace multihead
