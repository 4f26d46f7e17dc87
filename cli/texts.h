// Texts, one per line, and how far the work on them is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "multihead/kernels/matmul/packed_linear.h"

namespace multihead::cli {

/// --weights of an encoder.
struct WeightsFlag {
  std::string word = "f32";

  void declare(Flags& flags) {
    flags.choice("weights", word, {"f32", "int8", "q8", "q4"},
                 "weights: int8 per row, q8 and q4 (8 and 4 bits) per group of 32");
  }
  kernels::WeightDtype dtype() const { return kernels::parse_weight_dtype(word); }
};

/// The lines of a file, or of stdin for "-". Throws InputError.
std::vector<std::string> lines_of(const std::string& data);

/// A line twice a second with what is done, the rate and the time that is left.
class TextMeter {
 public:
  explicit TextMeter(bool is_quiet) : is_quiet_(is_quiet) {}
  ~TextMeter();
  void operator()(int64_t done, int64_t total);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  bool is_quiet_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace multihead::cli
