// Helpers of the verbs under `bench`: a clock, the median, the rates of all threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::cli {

/// Seconds of a clock that never jumps.
double wall_seconds();
double median_of(std::vector<double> values);

/// The sum over all threads of what `rate` gives for each, measured at the same time.
double all_threads(const std::function<double(int64_t)>& rate);
/// f32 multiply-adds of all threads at this moment.
double peak_gflops();

/// {"cpu", "isa", "float32_matmul_precision", "tiles", "threads"}
Json machine_report();

}  // namespace multihead::cli
