// Three passes over a row, which stays in L1 or L2 between them: maximum, exponentials and their sum,
// scaling. The exponentials of a bf16 row lie in f32, in a row of scratch if the caller does not want them:
// computing them twice takes up to 1.9 times as long (Zen 5, November 2026).
#include "multihead/kernels/reduce/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/reduce/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/reduce/row_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// The maximum of -inf and NaN may be either, so a row without a finite element is looked at again.
template <class T>
inline bool AllMinusInfinity(const T* x, float max, int64_t size) {
  return max == kMinusInfinity &&
         std::all_of(x, x + size, [](T v) { return static_cast<float>(v) == kMinusInfinity; });
}

// p and y are the same, or p is the result in f32.
template <class From, class To>
HWY_INLINE void SoftmaxRow(const From* x, float* p, To* y, int64_t size) {
  const float max = RowMax(x, size);
  if (AllMinusInfinity(x, max, size)) {
    std::fill(p, p + size, 0.0f);
    std::fill(y, y + size, static_cast<To>(0.0f));
    return;
  }
  const Pack factor = Set(1 / RowExp(x, max, p, size));
  ForPacks(size, [&](int64_t i, auto at) HWY_ATTR {
    const Pack v = Mul(at.Load(p + i), factor);
    at.Store(v, p + i);
    if constexpr (!std::is_same_v<To, float>) at.Store(v, y + i);
  });
}

void SoftmaxRun(const float* x, float* y, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, x += rows.size, y += rows.size) {
    SoftmaxRow(x, y, y, rows.size);
  }
}
void SoftmaxBf16Run(const BFloat16* x, BFloat16* y, float* p, int64_t step, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, x += rows.size, y += rows.size, p += step) {
    SoftmaxRow(x, p, y, rows.size);
  }
}

void SoftmaxBackwardRun(const float* y, const float* dy, float* dx, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, y += rows.size, dy += rows.size, dx += rows.size) {
    const Pack shift = Set(SumOfChains(rows.size, [&](int64_t from, int64_t n) HWY_ATTR {
      Pack dot = Set(0);
      ForPacks(n, [&](int64_t i, auto at)
                      HWY_ATTR { dot = MulAdd(at.Load(dy + from + i), at.Load(y + from + i), dot); });
      return Sum(dot);
    }));
    ForPacks(rows.size, [&](int64_t i, auto at)
                            HWY_ATTR { at.Store(Mul(at.Load(y + i), Sub(at.Load(dy + i), shift)), dx + i); });
  }
}

void LogSoftmaxRun(const float* x, float* y, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, x += rows.size, y += rows.size) {
    const float max = RowMax(x, rows.size);
    if (AllMinusInfinity(x, max, rows.size)) {
      std::fill(y, y + rows.size, max);
      continue;
    }
    const Pack shift = Set(max), log_sum = Set(LogOf(RowExpSum(x, max, rows.size)));
    ForPacks(rows.size,
             [&](int64_t i, auto at) HWY_ATTR { at.Store(Sub(Sub(at.Load(x + i), shift), log_sum), y + i); });
  }
}

void LogSoftmaxBackwardRun(const float* y, const float* dy, float* dx, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, y += rows.size, dy += rows.size, dx += rows.size) {
    const Pack sum = Set(SumOfChains(rows.size, [&](int64_t from, int64_t n) HWY_ATTR {
      Pack total = Set(0);
      ForPacks(n, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, at.Load(dy + from + i)); });
      return Sum(total);
    }));
    ForPacks(rows.size, [&](int64_t i, auto at) HWY_ATTR {
      const Pack p = Map(ExpNonPositiveOp(), at.Load(y + i));
      at.Store(NegMulAdd(p, sum, at.Load(dy + i)), dx + i);
    });
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 4096;  // elements

HWY_EXPORT(SoftmaxRun);
HWY_EXPORT(SoftmaxBf16Run);
HWY_EXPORT(SoftmaxBackwardRun);
HWY_EXPORT(LogSoftmaxRun);
HWY_EXPORT(LogSoftmaxBackwardRun);

// f(first element, rows) on ranges of rows.
template <class F>
void for_rows(Rows rows, F&& f) {
  if (rows.size == 0) return;
  parallel_ranges(rows.count, std::max<int64_t>(1, kGrain / rows.size), [&](int64_t begin, int64_t end) {
    f(begin * rows.size, Rows{end - begin, rows.size});
  });
}

double log_sum_exp(const double* x, int64_t size, double max) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += std::exp(x[i] - max);
  return std::log(sum);
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

void softmax(const float* x, float* y, Rows rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(SoftmaxRun);
  for_rows(rows, [&](int64_t at, Rows part) { run(x + at, y + at, part); });
}
void softmax_backward(const float* y, const float* dy, float* dx, Rows rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(SoftmaxBackwardRun);
  for_rows(rows, [&](int64_t at, Rows part) { run(y + at, dy + at, dx + at, part); });
}
void softmax(const BFloat16* x, BFloat16* y, float* exact, Rows rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(SoftmaxBf16Run);
  for_rows(rows, [&](int64_t at, Rows part) {
    static thread_local PerThread<Scratch> scratch;
    if (exact != nullptr) return run(x + at, y + at, exact + at, rows.size, part);
    run(x + at, y + at, scratch->get<float>(static_cast<size_t>(rows.size)), 0, part);
  });
}
void log_softmax(const float* x, float* y, Rows rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(LogSoftmaxRun);
  for_rows(rows, [&](int64_t at, Rows part) { run(x + at, y + at, part); });
}
void log_softmax_backward(const float* y, const float* dy, float* dx, Rows rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(LogSoftmaxBackwardRun);
  for_rows(rows, [&](int64_t at, Rows part) { run(y + at, dy + at, dx + at, part); });
}

void softmax(const double* x, double* y, Rows rows) {
  if (rows.size == 0) return;
  for (int64_t row = 0; row < rows.count; ++row, x += rows.size, y += rows.size) {
    const double max = *std::max_element(x, x + rows.size);
    double sum = 0;
    for (int64_t i = 0; i < rows.size; ++i) sum += y[i] = max == kMinusInfinity ? 0 : std::exp(x[i] - max);
    for (int64_t i = 0; i < rows.size; ++i) y[i] = max == kMinusInfinity ? 0 : y[i] / sum;
  }
}
void softmax_backward(const double* y, const double* dy, double* dx, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, y += rows.size, dy += rows.size, dx += rows.size) {
    double dot = 0;
    for (int64_t i = 0; i < rows.size; ++i) dot += dy[i] * y[i];
    for (int64_t i = 0; i < rows.size; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
}
void log_softmax(const double* x, double* y, Rows rows) {
  if (rows.size == 0) return;
  for (int64_t row = 0; row < rows.count; ++row, x += rows.size, y += rows.size) {
    const double max = *std::max_element(x, x + rows.size);
    const double log_sum = max == kMinusInfinity ? 0 : log_sum_exp(x, rows.size, max);
    for (int64_t i = 0; i < rows.size; ++i) y[i] = max == kMinusInfinity ? max : x[i] - max - log_sum;
  }
}
void log_softmax_backward(const double* y, const double* dy, double* dx, Rows rows) {
  for (int64_t row = 0; row < rows.count; ++row, y += rows.size, dy += rows.size, dx += rows.size) {
    double sum = 0;
    for (int64_t i = 0; i < rows.size; ++i) sum += dy[i];
    for (int64_t i = 0; i < rows.size; ++i) dx[i] = dy[i] - std::exp(y[i]) * sum;
  }
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
