// One row times weights that no cache holds, packed or row-major f32 (plain): a ring of matrices, each turn
// between two turns of a loop that only reads as many bytes. `of_read_rate` is the median of their ratio.
//   kernels_bench --benchmark_filter=ColdProduct
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kRing = 256 << 20, kTurn = 16 << 20;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Four chains of 16 words: enough loads on their way for every instruction set.
uint64_t read_words(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

// No dtype: row-major f32, as gemm() reads it.
void ColdProduct(benchmark::State& state, std::optional<WeightDtype> dtype) {
  const int64_t k = state.range(0), rows = state.range(1), threads = state.range(2);
  const int64_t n = std::max<int64_t>(1024, 65536 / k * 16);
  const int64_t bytes = dtype ? packed_weight_bytes(*dtype, n, k) : n * k * 4;
  set_num_threads(static_cast<int>(threads));
  std::vector<float> weight(n * k), x(rows * k), y(rows * n);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i * 2654435761u % 1009) / 500 - 1;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 40503u % 997) / 500 - 1;
  const int64_t turn = std::max<int64_t>(kTurn / bytes, 1), copies = std::max(kRing / bytes, 2 * turn);
  auto* ring = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(copies * bytes)));
  dtype ? pack_weight(*dtype, weight.data(), k, n, k, ring)
        : static_cast<void>(std::memcpy(ring, weight.data(), static_cast<size_t>(bytes)));
  for (int64_t i = 1; i < copies; ++i) std::memcpy(ring + i * bytes, ring, static_cast<size_t>(bytes));

  std::vector<double> ratios, rates;
  int64_t at = 0;
  const auto next = [&] {
    if (at + turn > copies) at = 0;
    return (at += turn) - turn;
  };
  for (auto _ : state) {
    const int64_t words = turn * bytes / 8;
    const auto* from = reinterpret_cast<const uint64_t*>(ring + next() * bytes);
    const double begin = seconds();
    parallel_for(threads, [&](int64_t task, int) {
      benchmark::DoNotOptimize(
          read_words(from + words * task / threads, words * (task + 1) / threads - words * task / threads));
    });
    const double middle = seconds();
    for (int64_t i = next(), end = i + turn; i < end; ++i) {
      if (!dtype) {
        gemm({.a = x.data(),
              .lda = k,
              .b = reinterpret_cast<const float*>(ring + i * bytes),
              .ldb = k,
              .tb = Transpose::yes,
              .c = y.data(),
              .ldc = n,
              .m = rows,
              .n = n,
              .k = k});
        continue;
      }
      packed_linear({.x = x.data(),
                     .ldx = k,
                     .packed = ring + i * bytes,
                     .dtype = *dtype,
                     .y = y.data(),
                     .ldy = n,
                     .rows = rows,
                     .out = n,
                     .in = k});
    }
    const double product = seconds() - middle;
    state.SetIterationTime(product);
    ratios.push_back((middle - begin) / product);
    rates.push_back(static_cast<double>(turn * bytes) / product);
  }
  std::free(ring);
  state.counters["of_read_rate"] = median(ratios);
  state.counters["bytes/s"] = median(rates);
  state.counters["mac/s"] = median(rates) / static_cast<double>(bytes) * static_cast<double>(rows * n * k);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"k", "rows", "threads"})->UseManualTime()->MinTime(1);
  for (const int threads : {1, 2}) {
    for (const int k : {64, 576, 768, 1536, 2048, 3072, 4096, 8192, 16384}) bench->Args({k, 1, threads});
    for (const int rows : {4, 24, 512}) bench->Args({576, rows, threads});
  }
}

BENCHMARK_CAPTURE(ColdProduct, plain, std::nullopt)->Apply(shapes);
BENCHMARK_CAPTURE(ColdProduct, f32, WeightDtype::f32)->Apply(shapes);
BENCHMARK_CAPTURE(ColdProduct, bf16, WeightDtype::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(ColdProduct, int8, WeightDtype::int8)->Apply(shapes);
BENCHMARK_CAPTURE(ColdProduct, q8, WeightDtype::q8)->Apply(shapes);
BENCHMARK_CAPTURE(ColdProduct, q4, WeightDtype::q4)->Apply(shapes);

}  // namespace
}  // namespace multihead::kernels
