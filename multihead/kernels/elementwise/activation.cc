// One pass over the input and one over the output; the gradients recompute the value instead of storing it.
#include "multihead/kernels/elementwise/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

template <class Function>
struct SlopeTimes {
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::Mul(Function::Both(Floats(), x).slope, dy);
  }
};
template <class Function>
struct ValueOf {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return Function::Value(Floats(), x); }
};

template <class T>
void ActivateOf(Activation activation, const T* x, float* y, int64_t count) {
  DispatchActivation(activation, [&](auto function) HWY_ATTR {
    const ValueOf<decltype(function)> value;
    ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { at.Store(Map(value, at.Load(x + i)), y + i); });
  });
}

template <class T>
void ActivateBackwardOf(Activation activation, const T* x, const float* dy, float* dx, int64_t count) {
  DispatchActivation(activation, [&](auto function) HWY_ATTR {
    const SlopeTimes<decltype(function)> product;
    ForPacks(count, [&](int64_t i, auto at)
                        HWY_ATTR { at.Store(Map(product, at.Load(x + i), at.Load(dy + i)), dx + i); });
  });
}

template <class Function>
struct ValueAndSlopeOf {
  HWY_INLINE void operator()(FloatVec& value, FloatVec& slope, FloatVec x) const {
    const auto f = Function::Both(Floats(), x);
    value = f.value;
    slope = f.slope;
  }
};

template <class T>
void ActivateWithSlopeOf(Activation activation, const T* x, T* y, float* slope, int64_t count) {
  DispatchActivation(activation, [&](auto function) HWY_ATTR {
    const ValueAndSlopeOf<decltype(function)> both;
    ForPacks(count, [&](int64_t i, auto at) HWY_ATTR {
      Pack value, derivative;
      MapInto(both, value, derivative, at.Load(x + i));
      at.Store(value, y + i);
      at.Store(derivative, slope + i);
    });
  });
}

void ActivateRun(Activation activation, const float* x, float* y, int64_t count) {
  ActivateOf(activation, x, y, count);
}
void ActivateRun16(Activation activation, const BFloat16* x, float* y, int64_t count) {
  ActivateOf(activation, x, y, count);
}
void ActivateBackwardRun(Activation activation, const float* x, const float* dy, float* dx, int64_t count) {
  ActivateBackwardOf(activation, x, dy, dx, count);
}
void ActivateBackwardRun16(Activation activation, const BFloat16* x, const float* dy, float* dx,
                           int64_t count) {
  ActivateBackwardOf(activation, x, dy, dx, count);
}
void ActivateWithSlopeRun(Activation activation, const float* x, float* y, float* slope, int64_t count) {
  ActivateWithSlopeOf(activation, x, y, slope, count);
}
void ActivateWithSlopeRun16(Activation activation, const BFloat16* x, BFloat16* y, float* slope,
                            int64_t count) {
  ActivateWithSlopeOf(activation, x, y, slope, count);
}

void GatedRun(Activation activation, const float* gate, const float* up, float* y, int64_t count) {
  DispatchActivation(activation, [&](auto function) HWY_ATTR {
    const ValueOf<decltype(function)> value;
    ForPacks(count, [&](int64_t i, auto at)
                        HWY_ATTR { at.Store(Mul(Map(value, at.Load(gate + i)), at.Load(up + i)), y + i); });
  });
}

template <class Function>
struct GatedSlopes {
  HWY_INLINE void operator()(FloatVec& d_gate, FloatVec& d_up, FloatVec gate, FloatVec up,
                             FloatVec dy) const {
    const auto f = Function::Both(Floats(), gate);
    d_gate = hn::Mul(hn::Mul(dy, up), f.slope);
    d_up = hn::Mul(dy, f.value);
  }
};

void GatedBackwardRun(Activation activation, const float* gate, const float* up,
                      const GatedGradients<float>& g, int64_t count) {
  DispatchActivation(activation, [&](auto function) HWY_ATTR {
    const GatedSlopes<decltype(function)> slopes;
    ForPacks(count, [&](int64_t i, auto at) HWY_ATTR {
      Pack d_gate, d_up;
      MapInto(slopes, d_gate, d_up, at.Load(gate + i), at.Load(up + i), at.Load(g.dy + i));
      at.Store(d_gate, g.d_gate + i);
      at.Store(d_up, g.d_up + i);
    });
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <numbers>

namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 4096;

struct Point {
  double value, slope;
};

Point evaluate(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return {x > 0 || x != x ? x : 0, x > 0 ? 1.0 : 0.0};
    case Activation::gelu: {
      const double cdf = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      return {x * cdf, cdf + x * density};
    }
    case Activation::gelu_tanh: {
      const double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi * 2;
      const double s = 1 / (1 + std::exp(-k * x * (1 + 0.044715 * x * x)));
      return {x * s, s + x * s * (1 - s) * k * (1 + 3 * 0.044715 * x * x)};
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s * (1 + x * (1 - s))};
    }
    case Activation::none:
      break;
  }
  return {x, 1};
}

HWY_EXPORT(ActivateRun);
HWY_EXPORT(ActivateRun16);
HWY_EXPORT(ActivateBackwardRun);
HWY_EXPORT(ActivateBackwardRun16);
HWY_EXPORT(ActivateWithSlopeRun);
HWY_EXPORT(ActivateWithSlopeRun16);
HWY_EXPORT(GatedRun);
HWY_EXPORT(GatedBackwardRun);

int64_t row_grain(const GatedRows& rows) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(rows.size, 1));
}

}  // namespace

void activate(Activation activation, const float* x, float* y, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateRun);
  parallel_ranges(count, kGrain,
                  [&](int64_t begin, int64_t end) { run(activation, x + begin, y + begin, end - begin); });
}

void activate(Activation activation, const BFloat16* x, float* y, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateRun16);
  parallel_ranges(count, kGrain,
                  [&](int64_t begin, int64_t end) { run(activation, x + begin, y + begin, end - begin); });
}

void activate(Activation activation, const double* x, double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = evaluate(activation, x[i]).value;
}

void activate_backward(Activation activation, const float* x, const float* dy, float* dx, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateBackwardRun);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(activation, x + begin, dy + begin, dx + begin, end - begin);
  });
}

void activate_backward(Activation activation, const BFloat16* x, const float* dy, float* dx, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateBackwardRun16);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(activation, x + begin, dy + begin, dx + begin, end - begin);
  });
}

void activate_backward(Activation activation, const double* x, const double* dy, double* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * evaluate(activation, x[i]).slope;
}

void activate_with_slope(Activation activation, const float* x, float* y, float* slope, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateWithSlopeRun);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(activation, x + begin, y + begin, slope + begin, end - begin);
  });
}

void activate_with_slope(Activation activation, const BFloat16* x, BFloat16* y, float* slope, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(ActivateWithSlopeRun16);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(activation, x + begin, y + begin, slope + begin, end - begin);
  });
}

void activate_with_slope(Activation activation, const double* x, double* y, double* slope, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Point f = evaluate(activation, x[i]);
    y[i] = f.value;
    slope[i] = f.slope;
  }
}

void gated(Activation activation, const float* gate, const float* up, float* y, const GatedRows& rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(GatedRun);
  parallel_ranges(rows.count, row_grain(rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      run(activation, gate + row * rows.stride, up + row * rows.stride, y + row * rows.size, rows.size);
    }
  });
}

void gated(Activation activation, const double* gate, const double* up, double* y, const GatedRows& rows) {
  for (int64_t row = 0; row < rows.count; ++row, gate += rows.stride, up += rows.stride, y += rows.size) {
    for (int64_t i = 0; i < rows.size; ++i) y[i] = evaluate(activation, gate[i]).value * up[i];
  }
}

void gated_backward(Activation activation, const float* gate, const float* up, const GatedGradients<float>& g,
                    const GatedRows& rows) {
  const auto run = HWY_DYNAMIC_DISPATCH(GatedBackwardRun);
  parallel_ranges(rows.count, row_grain(rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * rows.stride;
      run(activation, gate + at, up + at, {g.dy + row * rows.size, g.d_gate + at, g.d_up + at}, rows.size);
    }
  });
}

void gated_backward(Activation activation, const double* gate, const double* up,
                    const GatedGradients<double>& g, const GatedRows& rows) {
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t i = 0; i < rows.size; ++i) {
      const int64_t at = row * rows.stride + i;
      const double dy = g.dy[row * rows.size + i];
      const Point f = evaluate(activation, gate[at]);
      g.d_gate[at] = dy * up[at] * f.slope;
      g.d_up[at] = dy * f.value;
    }
  }
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
