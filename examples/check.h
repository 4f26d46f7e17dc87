// Helpers of the numbered examples: stored PyTorch values, and checks that print themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "multihead/multihead.h"

namespace examples {

namespace mh = multihead;

/// The tensors of examples/data/<document>.safetensors, by name.
inline mh::io::TensorMap stored(const std::string& document) {
  return mh::io::load_safetensors(std::string(MULTIHEAD_SOURCE_DIR) + "/examples/data/" + document +
                                  ".safetensors");
}

/// max |a - b| / max(1, max |b|); NaN where either is NaN, infinity where the shapes differ.
inline double difference(const mh::Tensor& a, const mh::Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0, largest = 1;
  for (const double value : y) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]) / largest;
    if (!(d <= worst)) worst = d;
    if (std::isnan(worst)) break;
  }
  return worst;
}

/// One line per check; finish() is the program's exit code.
class Checks {
 public:
  void close(const char* what, const mh::Tensor& got, const mh::Tensor& expected, double tolerance = 1e-6) {
    const double d = difference(got, expected);
    line(what, d <= tolerance, "largest difference " + mh::concat(d) + " <= " + mh::concat(tolerance));
  }
  void shape(const char* what, const mh::Tensor& got, const mh::Shape& expected) {
    line(what, got.shape() == expected, mh::concat(got.shape()));
  }
  void that(const char* what, bool holds, const std::string& detail = "") { line(what, holds, detail); }
  int finish() const {
    std::printf("%s\n", failed_ == 0 ? "all checks passed" : "CHECKS FAILED");
    return failed_ == 0 ? 0 : 1;
  }

 private:
  void line(const char* what, bool holds, const std::string& detail) {
    std::printf("%-6s %-62s %s\n", holds ? "ok" : "FAILED", what, detail.c_str());
    failed_ += holds ? 0 : 1;
  }
  int failed_ = 0;
};

}  // namespace examples
