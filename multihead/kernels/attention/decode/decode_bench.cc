// Decoding one token against the rate at which memory is read: 32 query heads on 8 key heads of 128, 16k
// keys, cold (a ring of caches above 500 MB). Each sample lies beside a reading of the ring's next cache by
// as many threads; `share` is the median of the ratios of the rates. Wall time: run it on a quiet machine.
//   kernels_bench --benchmark_filter=AttentionDecode
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kKeys = 16384;
constexpr int64_t kCache = 2 * kKvHeads * kKeys * kDim;  // elements of keys and values

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

float f32_of(uint32_t random) { return static_cast<float>(random >> 8) * 0x1p-23f - 1.0f; }

template <class T>
struct Ring {
  std::vector<T> query, memory, out;
  std::vector<float> lse;
  int64_t caches = 0, next = 0;

  Ring() {
    caches = (int64_t{512} << 20) / (kCache * static_cast<int64_t>(sizeof(T))) + 1;
    uint32_t state = 1;
    const auto fill = [&](std::vector<T>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (T& value : x) value = T(f32_of(state = state * 1664525u + 1013904223u));
    };
    fill(query, kHeads * kDim), fill(memory, caches * kCache), fill(out, kHeads * kDim);
    lse.resize(kHeads);
  }

  const T* advance() {
    next = (next + 1) % caches;
    return memory.data() + next * kCache;
  }

  double read() {
    const T* cache = advance();
    const int64_t bytes = kCache * static_cast<int64_t>(sizeof(T)), part = bytes / 16;
    const double start = wall_seconds();
    parallel_for(16, [&](int64_t i, int) {
      read_gbps(reinterpret_cast<const float*>(reinterpret_cast<const char*>(cache) + i * part),
                static_cast<size_t>(part), 0);
    });
    return wall_seconds() - start;
  }

  double decode() {
    const T* cache = advance();
    AttentionProblem p;
    p.batch = 1, p.heads = kHeads, p.kv_heads = kKvHeads, p.queries = 1, p.keys = kKeys;
    p.head_dim = p.value_dim = kDim, p.scale = 1 / std::sqrt(static_cast<double>(kDim));
    p.causal = true, p.diagonal = kKeys - 1;
    const Strides3 q{kHeads * kDim, kDim, kDim}, k{kKvHeads * kKeys * kDim, kKeys * kDim, kDim};
    const AttentionInput in{{query.data(), q}, {cache, k}, {cache + kCache / 2, k}};
    const AttentionOutput o{{out.data(), q}, {lse.data(), {kHeads, 1, 1}}};
    const double start = wall_seconds();
    attention_forward(p, ScoreTerms(), in, o);
    return wall_seconds() - start;
  }
};

double median(std::vector<double>& x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

template <class T>
void decode_share(benchmark::State& state, int threads) {
  const int before = num_threads();
  set_num_threads(threads);
  Ring<T> ring;
  ring.read(), ring.decode();
  const double gigabytes = 1e-9 * static_cast<double>(kCache * static_cast<int64_t>(sizeof(T)));
  std::vector<double> shares, reads, rates;
  for (auto _ : state) {
    const double first = ring.read(), seconds = ring.decode(), second = ring.read();
    state.SetIterationTime(seconds);
    shares.push_back(std::min(first, second) / seconds);
    reads.push_back(gigabytes / std::min(first, second)), rates.push_back(gigabytes / seconds);
  }
  state.counters["share"] = median(shares);
  state.counters["read_GBps"] = median(reads);
  state.counters["decode_GBps"] = median(rates);
  set_num_threads(before);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (int threads : {1, 2}) {
    const std::string suffix = "/threads:" + std::to_string(threads);
    benchmark::RegisterBenchmark(("AttentionDecode/f32" + suffix).c_str(),
                                 [threads](benchmark::State& s) { decode_share<float>(s, threads); })
        ->UseManualTime()
        ->Iterations(31);
    benchmark::RegisterBenchmark(("AttentionDecode/bf16" + suffix).c_str(),
                                 [threads](benchmark::State& s) { decode_share<BFloat16>(s, threads); })
        ->UseManualTime()
        ->Iterations(61);
  }
  return true;
}();

}  // namespace
}  // namespace multihead::kernels
