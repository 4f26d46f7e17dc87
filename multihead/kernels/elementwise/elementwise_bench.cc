// Throughput of the elementwise families on the sizes of a small GPT: rows x columns f32, bytes that must
// move.
#include <benchmark/benchmark.h>

#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/elementwise/dropout.h"
#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/kernels/elementwise/optimizer.h"
#include "multihead/kernels/reduce/cross_entropy.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/kernels/reduce/softmax.h"
#include "multihead/kernels/reduce/sum.h"

namespace multihead::kernels {
namespace {

// Rows, columns and threads of a run, and memory enough for every kernel below.
struct Bench {
  explicit Bench(const benchmark::State& state)
      : rows(state.range(0)),
        columns(state.range(1)),
        count(rows * columns),
        x(values(1)),
        y(values(2)),
        z(values(3)),
        w(values(4)),
        row(static_cast<size_t>(columns), 1.0f),
        of_rows(static_cast<size_t>(rows)),
        of_rows_too(static_cast<size_t>(rows)),
        targets(static_cast<size_t>(rows), 1),
        scratch(static_cast<size_t>(norm_backward_scratch(rows, columns))) {
    for (float& v : w) v *= v;  // Adam's second moment
    set_num_threads(static_cast<int>(state.range(2)));
  }

  std::vector<float> values(int seed) const {
    std::vector<float> v(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>((i * 7919 + static_cast<size_t>(seed)) % 1000) / 250 - 2;
    return v;
  }

  int64_t rows, columns, count;
  std::vector<float> x, y, z, w, row, of_rows, of_rows_too;
  std::vector<int64_t> targets;
  std::vector<float> scratch;
};

template <class F>
void run(benchmark::State& state, int64_t bytes_per_element, F&& f) {
  Bench b(state);
  for (auto _ : state) f(b);
  state.SetBytesProcessed(state.iterations() * b.count * bytes_per_element);
}

void gelu_forward(benchmark::State& s) {
  run(s, 8, [](Bench& b) { activate(Activation::gelu, b.x.data(), b.y.data(), b.count); });
}
void gelu_backward(benchmark::State& s) {
  run(s, 12,
      [](Bench& b) { activate_backward(Activation::gelu, b.x.data(), b.z.data(), b.y.data(), b.count); });
}
void silu_forward(benchmark::State& s) {
  run(s, 8, [](Bench& b) { activate(Activation::silu, b.x.data(), b.y.data(), b.count); });
}
void softmax_forward(benchmark::State& s) {
  run(s, 8, [](Bench& b) { softmax(b.x.data(), b.y.data(), {b.rows, b.columns}); });
}
void add_layer_norm(benchmark::State& s) {
  run(s, 16, [](Bench& b) {
    norm(NormArgs<float>{.rows = b.rows,
                         .size = b.columns,
                         .eps = 1e-5,
                         .x = b.x.data(),
                         .residual = b.z.data(),
                         .sum = b.w.data(),
                         .weight = b.row.data(),
                         .bias = b.row.data(),
                         .y = b.y.data(),
                         .mean = b.of_rows.data(),
                         .inv_std = b.of_rows_too.data()});
  });
}
void layer_norm_backward(benchmark::State& s) {
  run(s, 12, [](Bench& b) {
    norm_backward(NormGradArgs<float>{.rows = b.rows,
                                      .size = b.columns,
                                      .x = b.x.data(),
                                      .weight = b.row.data(),
                                      .mean = b.of_rows.data(),
                                      .inv_std = b.of_rows_too.data(),
                                      .dy = b.z.data(),
                                      .dx = b.y.data(),
                                      .d_weight = b.w.data(),
                                      .d_bias = b.w.data() + b.columns,
                                      .scratch = b.scratch.data()});
  });
}
void dropout_forward(benchmark::State& s) {
  run(s, 8, [](Bench& b) { dropout(b.x.data(), nullptr, b.y.data(), b.count, {{1, 2}, 0.1}); });
}
void cross_entropy_with_gradient(benchmark::State& s) {
  run(s, 8, [](Bench& b) {
    cross_entropy(CrossEntropyArgs<float>{.logits = b.x.data(),
                                          .targets = b.targets.data(),
                                          .rows = b.rows,
                                          .classes = b.columns,
                                          .losses = b.of_rows.data(),
                                          .d_logits = b.y.data()});
  });
}
void bias_gradient(benchmark::State& s) {
  run(s, 4, [](Bench& b) { sum_axis(b.x.data(), b.row.data(), {1, b.rows, b.columns}); });
}
void adam(benchmark::State& s) {
  run(s, 28, [](Bench& b) {
    adam_step(AdamState<float>{b.x.data(), b.z.data(), b.y.data(), b.w.data(), b.count}, {.lr = 1e-6});
  });
}

#define MH_BENCH(f) \
  BENCHMARK(f)->ArgNames({"rows", "columns", "threads"})->ArgsProduct({{768, 4096}, {128, 512}, {1, 2}})
MH_BENCH(gelu_forward);
MH_BENCH(gelu_backward);
MH_BENCH(silu_forward);
MH_BENCH(softmax_forward);
MH_BENCH(add_layer_norm);
MH_BENCH(layer_norm_backward);
MH_BENCH(dropout_forward);
MH_BENCH(cross_entropy_with_gradient);
MH_BENCH(bias_gradient);
MH_BENCH(adam);

}  // namespace
}  // namespace multihead::kernels
