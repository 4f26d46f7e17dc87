// Shapes of training, forward (NT), input gradient (NN) and weight gradient (TN). The share of the measured
// multiply-add peak is the number to look at: it survives a change of clock.
#include "multihead/kernels/matmul/gemm.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::kernels {
namespace {

enum Layout { kNN, kNT, kTN };

void multiply(benchmark::State& state, Activation activation) {
  const auto layout = static_cast<Layout>(state.range(0));
  const int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  set_num_threads(static_cast<int>(state.range(4)));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> real(-1, 1);
  std::vector<float> a(m * k), b(k * n), c(m * n), pre(m * n), bias(n);
  for (std::vector<float>* x : {&a, &b, &bias}) {
    for (float& value : *x) value = real(random);
  }
  GemmArgs<float> args{
      .a = a.data(), .lda = layout == kTN ? m : k, .b = b.data(), .ldb = layout == kNT ? k : n};
  args.ta = layout == kTN ? Transpose::yes : Transpose::no;
  args.tb = layout == kNT ? Transpose::yes : Transpose::no;
  args.c = c.data(), args.ldc = n;
  args.m = m, args.n = n, args.k = k;
  if (activation != Activation::none) {
    args.bias = bias.data();
    args.pre_activation = pre.data();
    args.activation = activation;
  }
  double peak = fma_gflops();
  for (auto _ : state) {
    gemm(args);
    benchmark::ClobberMemory();
  }
  peak = 0.5e9 * (peak + fma_gflops()) * static_cast<double>(state.range(4));
  const double flops = 2.0 * static_cast<double>(m * n * k);
  state.counters["flop/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] = benchmark::Counter(flops / peak, benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"layout", "m", "n", "k", "threads"})->UseRealTime();
  for (int threads : {1, 2}) {
    for (const auto& [m, n, k] : {std::tuple{1024, 768, 768},
                                  {1024, 3072, 768},
                                  {1024, 768, 3072},
                                  {4096, 512, 128},
                                  {4096, 128, 512},
                                  {768, 384, 128},
                                  {64, 64, 64}}) {
      bench->Args({kNT, m, n, k, threads})->Args({kNN, m, k, n, threads})->Args({kTN, n, k, m, threads});
    }
    for (int m : {1, 8}) bench->Args({kNT, m, 4096, 4096, threads})->Args({kNN, m, 4096, 4096, threads});
  }
}

BENCHMARK_CAPTURE(multiply, plain, Activation::none)->Apply(shapes);
BENCHMARK_CAPTURE(multiply, bias_gelu, Activation::gelu)
    ->Args({kNT, 4096, 512, 128, 1})
    ->Args({kNT, 1024, 3072, 768, 1});

}  // namespace
}  // namespace multihead::kernels
