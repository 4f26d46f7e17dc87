// Forward attention on bf16 storage beside f32 in turns: `over_f32` is the median of the ratios of their
// times, `share` the useful flops of bf16 over the f32 FMA peak. CPU times of the calling thread.
//   kernels_bench --benchmark_filter=AttentionBf16
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::kernels {
namespace {

struct Shape {
  const char* name;
  int64_t batch, heads, length, dim;
  bool causal, dots;
};

template <class T>
struct Tensors {
  std::vector<T> q, k, v, out;

  explicit Tensors(int64_t n) {
    uint32_t state = 1;
    for (auto* x : {&q, &k, &v, &out}) {
      x->resize(static_cast<size_t>(n));
      for (T& value : *x) {
        state = state * 1664525u + 1013904223u;
        value = T(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
      }
    }
  }

  double run(const AttentionProblem& p, const Strides3& s) {
    const double start = thread_seconds();
    attention_forward(p, ScoreTerms(), {{q.data(), s}, {k.data(), s}, {v.data(), s}}, {{out.data(), s}, {}});
    return thread_seconds() - start;
  }
};

double median(std::vector<double>& x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void bf16_over_f32(benchmark::State& state, const Shape& s) {
  const int before = num_threads();
  set_num_threads(1);
  set_bf16_dots(s.dots);
  AttentionProblem p;
  p.batch = s.batch, p.heads = p.kv_heads = s.heads, p.queries = p.keys = s.length;
  p.head_dim = p.value_dim = s.dim, p.scale = 1 / std::sqrt(static_cast<double>(s.dim)), p.causal = s.causal;
  const Strides3 strides{s.heads * s.length * s.dim, s.length * s.dim, s.dim};
  Tensors<float> f32(s.batch * s.heads * s.length * s.dim);
  Tensors<BFloat16> bf16(s.batch * s.heads * s.length * s.dim);
  const double length = static_cast<double>(s.length);
  const double flops = 4.0 * static_cast<double>(s.batch * s.heads * s.dim) *
                       (s.causal ? length * (length + 1) / 2 : length * length);
  f32.run(p, strides), bf16.run(p, strides);
  std::vector<double> ratios, shares;
  for (auto _ : state) {
    const double first = f32.run(p, strides), seconds = bf16.run(p, strides), peak = fma_gflops(5e-4);
    state.SetIterationTime(seconds);
    ratios.push_back(first / seconds), shares.push_back(1e-9 * flops / seconds / peak);
  }
  state.counters["over_f32"] = median(ratios);
  state.counters["share"] = median(shares);
  set_bf16_dots(true);
  set_num_threads(before);
}

[[maybe_unused]] const bool kRegistered = [] {
  static const Shape kShapes[] = {
      {"dense_8x1024x128", 1, 8, 1024, 128, false, true},
      {"dense_8x1024x64", 1, 8, 1024, 64, false, true},
      {"dense_8x1024x32", 1, 8, 1024, 32, false, true},
      {"causal_8x1024x64", 1, 8, 1024, 64, true, true},
      {"causal_8x1024x32", 1, 8, 1024, 32, true, true},
      {"causal_32x256x64", 4, 8, 256, 64, true, true},
      {"dense_96x128x64", 8, 12, 128, 64, false, true},
      {"widened_8x1024x128", 1, 8, 1024, 128, false, false},
      {"widened_8x1024x64", 1, 8, 1024, 64, false, false},
      {"widened_8x1024x32", 1, 8, 1024, 32, false, false},
      {"widened_causal_8x1024x128", 1, 8, 1024, 128, true, false},
      {"widened_causal_8x1024x64", 1, 8, 1024, 64, true, false},
      {"widened_causal_8x1024x32", 1, 8, 1024, 32, true, false},
      {"widened_96x128x64", 8, 12, 128, 64, false, false},
  };
  for (const Shape& s : kShapes) {
    benchmark::RegisterBenchmark((std::string("AttentionBf16/") + s.name).c_str(),
                                 [&s](benchmark::State& state) { bf16_over_f32(state, s); })
        ->UseManualTime()
        ->MinTime(0.15);
  }
  return true;
}();

}  // namespace
}  // namespace multihead::kernels
