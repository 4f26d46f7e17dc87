#include "cli/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::cli {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double all_threads(const std::function<double(int64_t)>& rate) {
  std::vector<double> rates(static_cast<size_t>(num_threads()));
  parallel_for(num_threads(), [&](int64_t i, int) { rates[static_cast<size_t>(i)] = rate(i); });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

double peak_gflops() {
  return all_threads([](int64_t) { return kernels::fma_gflops(1e-3); });
}

Json machine_report() {
  return Json::object(
      {{"cpu", kernels::cpu_name()},
       {"isa", kernels::isa_name(kernels::current_isa())},
       {"float32_matmul_precision", kernels::precision_name(kernels::float32_matmul_precision())},
       {"tiles", kernels::has_tiles()},
       {"threads", num_threads()}});
}

}  // namespace multihead::cli
