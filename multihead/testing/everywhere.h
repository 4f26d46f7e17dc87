// Runs a kernel on every instruction set and thread count and holds it to its promises.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"

namespace multihead::testing {

/// Everything a kernel wrote.
using Outputs = std::vector<std::vector<float>>;
using Outputs64 = std::vector<std::vector<double>>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), kNan);
}
inline std::vector<double> poisoned64(int64_t count) {
  return std::vector<double>(static_cast<size_t>(count), std::numeric_limits<double>::quiet_NaN());
}

/// Normal numbers, the same for the same seed.
inline std::vector<float> normal_floats(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  const RandomStream stream{seed, 1};
  for (size_t i = 0; i < values.size(); ++i) {
    const double radius = std::sqrt(-2 * std::log(stream.uniform(2 * i) + 0x1p-25));
    values[i] = static_cast<float>(radius * std::cos(6.283185307179586 * stream.uniform(2 * i + 1)));
  }
  return values;
}
inline std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Restores the instruction set and the threads.
class EverywhereScope {
 public:
  EverywhereScope() : isa_(kernels::current_isa()), threads_(num_threads()) {}
  ~EverywhereScope() {
    kernels::set_isa(isa_);
    set_num_threads(threads_);
  }

 private:
  kernels::Isa isa_;
  int threads_;
};

/// Calls check(where) on every instruction set, with and without dots of bytes, on one and three threads.
inline void everywhere(const std::function<void(const std::string&)>& check) {
  const EverywhereScope scope;
  for (const kernels::Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    for (const bool dots : {true, false}) {
      kernels::set_int8_dots(dots);
      if (dots != kernels::int8_dots()) continue;
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        check(std::string(kernels::isa_name(isa)) + (dots ? " dots " : " ") + std::to_string(threads) +
              " threads");
      }
    }
  }
  kernels::set_int8_dots(true);
}

struct Limits {
  double atol = 1e-6, rtol = 2e-6;
};

inline void expect_near(const Outputs& got, const Outputs64& exact, const Limits& limits,
                        const std::string& where) {
  ASSERT_EQ(got.size(), exact.size());
  for (size_t k = 0; k < got.size(); ++k) {
    ASSERT_EQ(got[k].size(), exact[k].size());
    for (size_t i = 0; i < got[k].size(); ++i) {
      const double error = std::abs(static_cast<double>(got[k][i]) - exact[k][i]);
      if (got[k][i] == static_cast<float>(exact[k][i])) continue;
      ASSERT_LE(error, limits.atol + limits.rtol * std::abs(exact[k][i]))
          << where << ", output " << k << ", element " << i << ": got " << got[k][i] << ", expected "
          << exact[k][i];
    }
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  // memcmp minds null pointers even of no length.
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline void expect_same(const Outputs& got, const Outputs& expected, const std::string& where) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t k = 0; k < got.size(); ++k) {
    ASSERT_TRUE(same_bits(got[k], expected[k])) << where << ": the bits of output " << k << " differ";
  }
}

/// `run` on every target with 1, 2, 3 and 8 threads: within `limits` of `exact`, the same bits at any thread
/// count, and the same bits on every target with FMA.
inline void check_everywhere(const std::function<Outputs()>& run, const Outputs64& exact,
                             const Limits& limits = {}) {
  using kernels::Isa;
  const EverywhereScope scope;
  Outputs with_fma;
  for (const Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    Outputs one_thread;
    for (const int threads : {1, 2, 3, 8}) {
      set_num_threads(threads);
      const std::string where =
          std::string(kernels::isa_name(isa)) + ", " + std::to_string(threads) + " threads";
      const Outputs got = run();
      expect_near(got, exact, limits, where);
      if (threads == 1) {
        one_thread = got;
      } else {
        expect_same(got, one_thread, where);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    if (isa == Isa::baseline) continue;
    if (with_fma.empty()) {
      with_fma = one_thread;
    } else {
      expect_same(one_thread, with_fma, "avx2 against avx512");
    }
  }
}

}  // namespace multihead::testing
