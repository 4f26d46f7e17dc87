// Shared by the checks of both kinds of models.
#pragma once

#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/core/tensor.h"
#include "multihead/optim/adam.h"
#include "multihead/train/doctor.h"

namespace multihead::train {

/// Runs checks in turn; an exception is a failed check.
class CheckList {
 public:
  explicit CheckList(const DoctorOptions& options) : options_(options) {}

  void run(const char* name, const std::function<void(CheckResult&)>& body) {
    const auto start = std::chrono::steady_clock::now();
    CheckResult result;
    result.name = name;
    try {
      body(result);
    } catch (const std::exception& error) {
      result.passed = false;
      result.detail = error.what();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options_.on_result) options_.on_result(result);
    results_.push_back(std::move(result));
  }
  std::vector<CheckResult> take() { return std::move(results_); }

 private:
  const DoctorOptions& options_;
  std::vector<CheckResult> results_;
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

inline double largest_difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (!(difference <= largest)) largest = difference;  // keeps NaN
  }
  return largest;
}

/// Whether a few steps of AdamW overfit one batch of random tokens.
inline void learn_by_heart(CheckResult& r, const std::vector<Tensor>& parameters, int64_t tokens,
                           const std::function<Tensor()>& loss_of_batch) {
  optim::AdamW optimizer(parameters, {.lr = 1e-3, .weight_decay = 0});
  double first = 0, last = 0;
  int64_t steps = 0;
  for (; steps < 300; ++steps) {
    Tape tape;
    const Tensor loss = loss_of_batch();
    last = loss.item();
    if (steps == 0) first = last;
    if (last < 0.05 * first) break;
    tape.backward(loss);
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  r.passed = last < 0.1 * first;
  r.detail = concat("loss ", first, " -> ", last, " in ", steps, " steps on ", tokens, " random tokens");
}

struct ThreadScope {
  ~ThreadScope() { set_num_threads(before); }
  int before = num_threads();
};

}  // namespace multihead::train
