// Measures what options, exclusions and a second thread cost: every sample of a variant lies between two of
// its base, and the counter `ratio` is the median of variant / base. Wall time: wants a quiet machine.
//   kernels_bench --benchmark_filter=AttentionRatio
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"

namespace multihead::kernels {
namespace {

struct Shape {
  int64_t batch, heads, length, dim;
};

struct Variant {
  bool causal = false, alibi = false, bias = false, lengths = false;
  double softcap = 0, dropout_p = 0;
  int64_t window = 0;
  int64_t relative_key = 0;  // rows of the table
  int threads = 1;
};

struct Ratio {
  const char* name;
  Shape shape;
  Variant base, variant;
};

struct Operands {
  Shape shape;
  std::vector<float> q, k, v, out, lse, d_out, dq, dk, dv, bias, slopes, table, d_table;
  std::vector<int64_t> lengths;

  explicit Operands(const Ratio& ratio) : shape(ratio.shape) {
    const Shape& s = shape;
    uint32_t state = 1;
    const auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (float& value : x) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
      }
    };
    for (auto* x : {&q, &k, &v, &out, &d_out, &dq, &dk, &dv}) fill(*x, s.batch * s.heads * s.length * s.dim);
    lse.resize(static_cast<size_t>(s.batch * s.heads * s.length));
    if (ratio.variant.bias) fill(bias, s.heads * s.length * s.length);
    for (auto* x : {&table, &d_table}) fill(*x, s.heads * ratio.variant.relative_key * s.dim);
    for (int64_t h = 0; h < s.heads; ++h) slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
    for (int64_t b = 0; b < s.batch; ++b) lengths.push_back(s.length * (2 * b + 1) / (2 * s.batch));
  }

  AttentionProblem problem(const Variant& v_) const {
    AttentionProblem p;
    p.batch = shape.batch, p.heads = p.kv_heads = shape.heads, p.queries = p.keys = shape.length;
    p.head_dim = p.value_dim = shape.dim, p.scale = 1 / std::sqrt(static_cast<double>(shape.dim));
    p.causal = v_.causal, p.dropout_p = v_.dropout_p, p.dropout_key = 7;
    if (v_.window > 0) p.causal = true, p.window_left = v_.window - 1;
    if (v_.lengths) p.key_lengths = p.query_lengths = lengths.data();
    return p;
  }

  // Wall seconds of one call.
  double run(const Variant& variant, bool backward) {
    set_num_threads(variant.threads);
    const AttentionProblem p = problem(variant);
    ScoreTerms terms;
    terms.softcap = variant.softcap;
    if (variant.alibi) terms.alibi_slopes = slopes.data();
    if (variant.bias) {
      terms.bias = bias.data(), terms.bias_strides = {0, shape.length * shape.length, shape.length, 1};
    }
    if (variant.relative_key > 0) {
      const int64_t span = variant.relative_key;
      terms.relative_key = {table.data(), span * shape.dim, shape.dim, span, span / 2};
    }
    const Strides3 x{shape.heads * shape.length * shape.dim, shape.length * shape.dim, shape.dim};
    const Strides3 l{shape.heads * shape.length, shape.length, 1};
    const AttentionInput in{{q.data(), x}, {k.data(), x}, {v.data(), x}};
    const AttentionOutput to{{out.data(), x}, {lse.data(), l}};
    AttentionGradient g;
    g.out = to.out, g.lse = to.lse, g.d_out = {d_out.data(), x};
    if (variant.relative_key > 0) g.d_relative_key = d_table.data();
    g.d_query = {dq.data(), x}, g.d_key = {dk.data(), x}, g.d_value = {dv.data(), x};
    if (backward) attention_forward(p, terms, in, to);
    const auto start = std::chrono::steady_clock::now();
    if (backward) {
      attention_backward(p, terms, in, g);
    } else {
      attention_forward(p, terms, in, to);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

void attention_ratio(benchmark::State& state, const Ratio& r, bool backward) {
  Operands operands(r);
  operands.run(r.variant, backward);
  double before = operands.run(r.base, backward);
  std::vector<double> ratios;
  for (auto _ : state) {
    const double seconds = operands.run(r.variant, backward), after = operands.run(r.base, backward);
    state.SetIterationTime(seconds);
    ratios.push_back(2 * seconds / (before + after));
    before = after;
  }
  set_num_threads(1);
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<int64_t>(ratios.size() / 2), ratios.end());
  state.counters["ratio"] = ratios[ratios.size() / 2];
}

[[maybe_unused]] const bool kRegistered = [] {
  static const Shape kUsual{1, 4, 1024, 64}, kLong{1, 1, 16384, 64};
  static const Ratio kRatios[] = {
      {"bias", kUsual, {}, {.bias = true}},
      {"alibi", kUsual, {}, {.alibi = true}},
      {"softcap", kUsual, {}, {.softcap = 20}},
      {"relative_key", kUsual, {}, {.relative_key = 2047}},
      {"relative_key_clipped", kUsual, {}, {.relative_key = 33}},
      {"causal_alibi", kUsual, {.causal = true}, {.causal = true, .alibi = true}},
      {"causal_bias", kUsual, {.causal = true}, {.causal = true, .bias = true}},
      {"causal_dropout", kUsual, {.causal = true}, {.causal = true, .dropout_p = 0.1}},
      {"causal", kUsual, {}, {.causal = true}},
      {"lengths", {16, 4, 512, 64}, {}, {.lengths = true}},
      {"window_1024_of_16k", kLong, {}, {.window = 1024}},
      {"two_threads_16k", kLong, {}, {.threads = 2}},
      {"two_threads_96x512", {8, 12, 512, 64}, {}, {.threads = 2}},
      {"two_threads_causal_16k", kLong, {.causal = true}, {.causal = true, .threads = 2}},
  };
  for (const Ratio& r : kRatios) {
    for (bool backward : {false, true}) {
      const bool slow = r.shape.length * r.shape.length * r.shape.heads * r.shape.batch > 20'000'000;
      auto* b = benchmark::RegisterBenchmark(
          (std::string(backward ? "AttentionRatioBackward/" : "AttentionRatioForward/") + r.name).c_str(),
          [&r, backward](benchmark::State& state) { attention_ratio(state, r, backward); });
      b->UseManualTime()->Iterations(slow ? 3 : 21)->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace multihead::kernels
