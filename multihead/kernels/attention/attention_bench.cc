// Attention against the FMA peak: every sample lies between two bursts of the calibrator, and the counter
// `share` is the median of the ratios. Times are CPU times of the calling thread, so other processes cost
// cache, not time.
//   kernels_bench --benchmark_filter=Attention
#include "multihead/kernels/attention/attention.h"

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::kernels {
namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Shape {
  const char* name;
  int64_t batch, heads, length, dim;
  bool causal;
  bool tokens_first = false;  // [B, T, H, D]
};

struct Tensors {
  std::vector<float> q, k, v, out, lse, d_out, dq, dk, dv;
  AttentionProblem p;
  ScoreTerms terms;
  AttentionInput in;
  AttentionOutput o;
  AttentionGradient g;

  explicit Tensors(const Shape& s) {
    const int64_t n = s.batch * s.heads * s.length * s.dim;
    uint32_t state = 1;
    const auto fill = [&](std::vector<float>& x) {
      x.resize(static_cast<size_t>(n));
      for (float& value : x) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
      }
    };
    for (auto* x : {&q, &k, &v, &out, &d_out, &dq, &dk, &dv}) fill(*x);
    lse.resize(static_cast<size_t>(s.batch * s.heads * s.length));
    p.batch = s.batch, p.heads = p.kv_heads = s.heads, p.queries = p.keys = s.length;
    p.head_dim = p.value_dim = s.dim, p.scale = 1 / std::sqrt(static_cast<double>(s.dim)),
    p.causal = s.causal;
    const int64_t token = s.tokens_first ? s.heads * s.dim : s.dim;
    const Strides3 x{s.heads * s.length * s.dim, s.tokens_first ? s.dim : s.length * s.dim, token};
    const Strides3 l{s.heads * s.length, s.length, 1};
    in = {{q.data(), x}, {k.data(), x}, {v.data(), x}};
    o = {{out.data(), x}, {lse.data(), l}};
    g.out = o.out, g.lse = o.lse, g.d_out = {d_out.data(), x};
    g.d_query = {dq.data(), x}, g.d_key = {dk.data(), x}, g.d_value = {dv.data(), x};
  }
};

void attention_share(benchmark::State& state, const Shape& s, bool backward) {
  set_num_threads(1);
  Tensors t(s);
  attention_forward(t.p, t.terms, t.in, t.o);
  const double length = static_cast<double>(s.length);
  const double pairs = s.causal ? length * (length + 1) / 2 : length * length;
  const double flops = (backward ? 10.0 : 4.0) * static_cast<double>(s.batch * s.heads * s.dim) * pairs;
  std::vector<double> shares;
  for (auto _ : state) {
    const double before = fma_gflops(5e-4), start = cpu_seconds();
    if (backward) {
      attention_backward(t.p, t.terms, t.in, t.g);
    } else {
      attention_forward(t.p, t.terms, t.in, t.o);
    }
    const double seconds = cpu_seconds() - start;
    state.SetIterationTime(seconds);
    shares.push_back(flops / seconds * 1e-9 / std::max(before, fma_gflops(5e-4)));
  }
  std::nth_element(shares.begin(), shares.begin() + static_cast<int64_t>(shares.size() / 2), shares.end());
  state.counters["share"] = shares[shares.size() / 2];
}

[[maybe_unused]] const bool kRegistered = [] {
  static const Shape kShapes[] = {
      {"dense_8x1024x128", 1, 8, 1024, 128, false},
      {"dense_8x1024x64", 1, 8, 1024, 64, false},
      {"dense_8x1024x32", 1, 8, 1024, 32, false},
      {"causal_8x1024x64", 1, 8, 1024, 64, true},
      {"causal_32x256x64", 4, 8, 256, 64, true},
      {"causal_48x64x32", 12, 4, 64, 32, true},
      {"dense_96x128x64", 8, 12, 128, 64, false},
      {"tokens_first_8x1024x64", 1, 8, 1024, 64, false, true},
      {"tokens_first_96x128x64", 8, 12, 128, 64, false, true},
  };
  for (const Shape& s : kShapes) {
    for (bool backward : {false, true}) {
      benchmark::RegisterBenchmark(
          (std::string(backward ? "AttentionBackward/" : "AttentionForward/") + s.name).c_str(),
          [&s, backward](benchmark::State& state) { attention_share(state, s, backward); })
          ->UseManualTime()
          ->MinTime(0.2);
    }
  }
  return true;
}();

}  // namespace
}  // namespace multihead::kernels
