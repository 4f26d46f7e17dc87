// The instructions that give numbers, with their derivatives by the score: loops that compilers turn into
// vectors.
#pragma once

#include <bit>
#include <cmath>

#include "python/src/score_program.h"
#include "python/src/score_program_integers.h"
#include "python/src/score_program_registers.h"

namespace multihead::python {

// e^x within 2 ulp: x = n·ln 2 + r, |r| <= ln 2 / 2, minimax polynomial (coefficients here and in tanh:
// Moshier, "Methods and programs for mathematical functions", 1989).
MH_INLINE float vector_exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float n = (clamped * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that subnormal results are reached.
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((whole - half + 127) << 23);
  return x != x ? x : p * low * high;
}
MH_INLINE double vector_exp(double x) { return std::exp(x); }

MH_INLINE float vector_tanh(float x) {
  const float a = std::fabs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = x + x * z * p;
  const float large = 1.0f - 2.0f / (vector_exp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : (x < 0 ? -large : large);
}
MH_INLINE double vector_tanh(double x) { return std::tanh(x); }

// y = f(a), dy = df(a, y) · da
template <bool kDerivative, class T, class F, class D>
MH_INLINE void unary(Registers<T>& r, int32_t index, int32_t a_index, bool active, F&& f, D&& df) {
  T* y = r.value(index);
  const T* a = r.value(a_index);
  each([&](int i) { y[i] = f(a[i]); });
  if (kDerivative && active) {
    T* dy = r.slope(index);
    const T* da = r.slope(a_index);
    each([&](int i) { dy[i] = df(a[i], y[i]) * da[i]; });
  }
}

// One switch, however long: with the functions of one number in a second one GCC 12 makes all of it 7 %
// slower.
template <bool kDerivative, class T>
MH_INLINE void run_number(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  const bool active = kDerivative && program.is_active(index);
  T* y = r.value(index);
  T* dy = r.slope(index);
  const T* a = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* b = in.b >= 0 ? r.value(in.b) : nullptr;
  const T* da = in.a >= 0 ? r.slope(in.a) : nullptr;
  const T* db = in.b >= 0 ? r.slope(in.b) : nullptr;
  const int32_t* ia = in.a >= 0 ? r.integer(in.a) : nullptr;
  const auto number = static_cast<T>(in.number);
  switch (in.op) {
    case Op::score:
      break;
    case Op::const_f:
      each([&](int i) { y[i] = number; });
      break;
    case Op::to_f:
      each([&](int i) { y[i] = static_cast<T>(ia[i]); });
      break;
    case Op::add_f:
      each([&](int i) { y[i] = a[i] + b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] + db[i]; });
      break;
    case Op::sub_f:
      each([&](int i) { y[i] = a[i] - b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] - db[i]; });
      break;
    case Op::mul_f:
      each([&](int i) { y[i] = a[i] * b[i]; });
      if (active) each([&](int i) { dy[i] = da[i] * b[i] + a[i] * db[i]; });
      break;
    case Op::div_f:
      each([&](int i) { y[i] = a[i] / b[i]; });
      if (active) each([&](int i) { dy[i] = (da[i] - y[i] * db[i]) / b[i]; });
      break;
    case Op::min_f:
      each([&](int i) { y[i] = b[i] < a[i] ? b[i] : a[i]; });
      if (active) each([&](int i) { dy[i] = b[i] < a[i] ? db[i] : da[i]; });
      break;
    case Op::max_f:
      each([&](int i) { y[i] = b[i] > a[i] ? b[i] : a[i]; });
      if (active) each([&](int i) { dy[i] = b[i] > a[i] ? db[i] : da[i]; });
      break;
    case Op::neg_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return -x; }, [](T, T) { return T(-1); });
      break;
    case Op::abs_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return x < 0 ? -x : x; },
          [](T x, T) { return x > 0 ? T(1) : (x < 0 ? T(-1) : T(0)); });
      break;
    case Op::exp_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return vector_exp(x); }, [](T, T e) { return e; });
      break;
    case Op::tanh_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return vector_tanh(x); }, [](T, T t) { return 1 - t * t; });
      break;
    case Op::sigmoid_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return 1 / (1 + vector_exp(-x)); },
          [](T, T s) { return s * (1 - s); });
      break;
    case Op::log_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::log(x); }, [](T x, T) { return 1 / x; });
      break;
    case Op::sqrt_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::sqrt(x); }, [](T, T s) { return T(0.5) / s; });
      break;
    case Op::sin_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::sin(x); }, [](T x, T) { return std::cos(x); });
      break;
    case Op::cos_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::cos(x); }, [](T x, T) { return -std::sin(x); });
      break;
    case Op::erf_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::erf(x); },
          [](T x, T) { return T(1.1283791670955126) * std::exp(-x * x); });
      break;
    case Op::pow_f:  // the exponent is a constant in in.number
      unary<kDerivative>(
          r, index, in.a, active, [&](T x) { return std::pow(x, number); },
          [&](T x, T) { return number * std::pow(x, number - 1); });
      break;
    case Op::floor_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::floor(x); }, [](T, T) { return T(0); });
      break;
    case Op::round_f:
      unary<kDerivative>(
          r, index, in.a, active, [](T x) { return std::nearbyint(x); }, [](T, T) { return T(0); });
      break;
    case Op::select_f: {
      const T* x = r.value(in.b);
      const T* z = r.value(in.c);
      each([&](int i) { y[i] = ia[i] != 0 ? x[i] : z[i]; });
      if (active) {
        const T* dx = r.slope(in.b);
        const T* dz = r.slope(in.c);
        each([&](int i) { dy[i] = ia[i] != 0 ? dx[i] : dz[i]; });
      }
      break;
    }
    case Op::gather_f: {
      const Tensor& table = program.tables()[static_cast<size_t>(in.table)];
      if (table.dtype() == Dtype::f64) {
        gather_table<double>(program, in, ia, at, y);
      } else {
        gather_table<float>(program, in, ia, at, y);
      }
      break;
    }
    default:
      break;
  }
}

}  // namespace multihead::python
