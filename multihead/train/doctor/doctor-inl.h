// Shared by the checks of all models. Private to doctor/.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/nn/module.h"
#include "multihead/train/doctor/doctor.h"

namespace multihead::train::detail {

using Loss = std::function<Tensor()>;

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

// None of them is `avoided` where the vocabulary allows it.
inline Tensor random_tokens(const Shape& shape, int64_t vocabulary, RandomStream stream,
                            int64_t avoided = -1) {
  Tensor tokens = Tensor::empty(shape, Dtype::i32);
  const auto ids = tokens.span<int32_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<int64_t>(stream.bits(i) % static_cast<uint64_t>(vocabulary));
    ids[i] = static_cast<int32_t>(id == avoided ? (id + 1) % vocabulary : id);
  }
  return tokens;
}

inline bool is_finite(const Tensor& logits, double loss) {
  const auto values = logits.to_vector<double>();
  return std::isfinite(loss) &&
         std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

inline std::vector<Tensor> gradients(const std::vector<Tensor>& parameters, const Loss& loss) {
  nn::zero_grad(parameters);
  Tape tape;
  tape.backward(loss());
  std::vector<Tensor> result;
  for (const Tensor& parameter : parameters) result.push_back(parameter.grad());
  nn::zero_grad(parameters);
  return result;
}

// Whether gradients are the same on 1, 2 and 3 threads.
inline void compare_threads(CheckResult& r, const std::vector<Tensor>& parameters, const Loss& loss) {
  struct Restore {
    ~Restore() { set_num_threads(threads); }
    int threads = num_threads();
  } restore;
  std::vector<std::vector<Tensor>> runs;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    runs.push_back(gradients(parameters, loss));
  }
  int64_t different = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& one = runs[0][i];
    const bool same = !one.defined() || (same_bits(one, runs[1][i]) && same_bits(one, runs[2][i]));
    different += same ? 0 : 1;
  }
  r.passed = different == 0;
  r.detail = concat(different, " of ", parameters.size(), " gradients depend on the number of threads");
}

/// Runs checks in turn; an exception is a failed check.
template <class Doctor>
std::vector<CheckResult> run_checks(
    Doctor doctor, const DoctorOptions& options,
    std::initializer_list<std::pair<const char*, void (Doctor::*)(CheckResult&)>> checks) {
  std::vector<CheckResult> results;
  for (const auto& [name, check] : checks) {
    const auto start = std::chrono::steady_clock::now();
    CheckResult result{.name = name};
    try {
      (doctor.*check)(result);
    } catch (const std::exception& error) {
      result.passed = false;
      result.detail = error.what();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options.on_result) options.on_result(result);
    results.push_back(std::move(result));
  }
  return results;
}

inline int64_t checked_length(const DoctorOptions& options, int64_t longest) {
  const int64_t length = std::min(options.length, longest);
  MH_CHECK(length >= 1, ValueError, "check: length must be positive, got ", options.length);
  return length;
}

}  // namespace multihead::train::detail
