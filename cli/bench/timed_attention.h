// One shape of `bench attention`: operands, timed calls, and the check against f64.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cli/bench/shape.h"
#include "multihead/ops/attention/attention.h"

namespace multihead::cli {

/// A signal asked us to end.
struct Interrupted {};

class TimedAttention {
 public:
  explicit TimedAttention(const BenchShape& shape);

  /// Calls for about `seconds` (at least once, after one call that does not count): the time of each. Throws
  /// Interrupted.
  std::vector<double> burst(double seconds);

  /// GB/s at which all threads read the next keys and values of the ring, once.
  double read_gbps();

  /// Largest error of out and gradients of batch 0 and key head 0, relative to the largest element, against
  /// the same in f64. Where that would take long, only the last rows of out and d_query. Nothing to compare
  /// with if the shape is too large even for that.
  std::optional<double> error();
  /// Beyond it a result counts as wrong.
  double tolerance() const;
  bool cold() const { return shape_.cold; }

 private:
  double call(int64_t number);
  AttentionOptions options(Dtype dtype, int64_t first_row, bool first_only, Rng* rng) const;
  ScoreMod score_mod() const;
  void compute_exact();

  BenchShape shape_;
  Tensor query_, d_out_, bias_, slopes_, valid_;
  std::vector<std::pair<Tensor, Tensor>> ring_;  // keys and values
  std::vector<Tensor> results_;                  // of the last call
  std::vector<Tensor> exact_;
  int64_t rows_ = 0, first_row_ = 0;  // those compared
  int64_t calls_ = 0;
};

}  // namespace multihead::cli
