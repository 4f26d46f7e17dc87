// The instructions that give numbers: loops that compilers turn into vectors. Their derivatives are in
// reverse.h.
#pragma once

#include <bit>
#include <cmath>

#include "python/src/score_program/integers.h"
#include "python/src/score_program/program.h"
#include "python/src/score_program/registers.h"
#include "python/src/score_program/rounding.h"

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

// y = f(a)
template <class T, class F>
MH_INLINE void unary(T* y, const T* a, F&& f) {
  each([&](int i) { y[i] = f(a[i]); });
}

// x^n with PyTorch's short cuts, which differ from the C library's at infinities.
template <class T>
MH_INLINE T power(T x, T n) {
  if (n == T(1)) return x;
  if (n == T(2)) return x * x;
  if (n == T(3)) return x * x * x;
  if (n == T(0.5)) return std::sqrt(x);
  if (n == T(-0.5)) return 1 / std::sqrt(x);
  if (n == T(-1)) return 1 / x;
  if (n == T(-2)) return 1 / (x * x);
  return std::pow(x, n);
}

// The remainder with the sign of the divisor, and the quotient that goes with it.
template <class T>
MH_INLINE T floor_mod(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
template <class T>
MH_INLINE T floor_quotient(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T(0), a / b);
  const T whole = std::floor(quotient);
  return quotient - whole > T(0.5) ? whole + 1 : whole;
}

// One switch, however long: with the functions of one number in a second one GCC 12 makes all of it 7 %
// slower.
template <class T>
MH_INLINE void run_number(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  T* y = r.value(index);
  const T* a = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* b = in.b >= 0 ? r.value(in.b) : nullptr;
  const T* c = in.c >= 0 ? r.value(in.c) : nullptr;
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
    case Op::copy_f:
    case Op::detach_f:
      each([&](int i) { y[i] = a[i]; });
      break;
    case Op::add_f:
      each([&](int i) { y[i] = a[i] + b[i]; });
      break;
    case Op::sub_f:
      each([&](int i) { y[i] = a[i] - b[i]; });
      break;
    case Op::mul_f:
      each([&](int i) { y[i] = a[i] * b[i]; });
      break;
    case Op::div_f:
      each([&](int i) { y[i] = a[i] / b[i]; });
      break;
    case Op::floordiv_f:
      each([&](int i) { y[i] = floor_quotient(a[i], b[i]); });
      break;
    case Op::mod_f:
      each([&](int i) { y[i] = floor_mod(a[i], b[i]); });
      break;
    case Op::fmod_f:
      each([&](int i) { y[i] = std::fmod(a[i], b[i]); });
      break;
    case Op::power_f:
      each([&](int i) { y[i] = std::pow(a[i], b[i]); });
      break;
    case Op::min_f:  // NaN wins
      each([&](int i) { y[i] = ((b[i] < a[i]) | (b[i] != b[i])) ? b[i] : a[i]; });
      break;
    case Op::max_f:
      each([&](int i) { y[i] = ((b[i] > a[i]) | (b[i] != b[i])) ? b[i] : a[i]; });
      break;
    case Op::clamp_f:  // bounds b and c, where there are any; the upper one wins, and NaN
      each([&](int i) { y[i] = a[i]; });
      if (b) each([&](int i) { y[i] = ((y[i] < b[i]) | (b[i] != b[i])) ? b[i] : y[i]; });
      if (c) each([&](int i) { y[i] = ((y[i] > c[i]) | (c[i] != c[i])) ? c[i] : y[i]; });
      break;
    case Op::neg_f:
      unary(y, a, [](T x) { return -x; });
      break;
    case Op::abs_f:
      unary(y, a, [](T x) { return std::fabs(x); });
      break;
    case Op::sign_f:
      unary(y, a, [](T x) { return static_cast<T>((x > 0) - (x < 0)); });
      break;
    case Op::exp_f:
      unary(y, a, [](T x) { return vector_exp(x); });
      break;
    case Op::exp2_f:
      unary(y, a, [](T x) { return std::exp2(x); });
      break;
    case Op::expm1_f:
      unary(y, a, [](T x) { return std::expm1(x); });
      break;
    case Op::tanh_f:
      unary(y, a, [](T x) { return vector_tanh(x); });
      break;
    case Op::sigmoid_f:
      if (in.kind == Kind::any || in.kind == Kind::f64) {
        unary(y, a, [](T x) { return 1 / (1 + vector_exp(-x)); });
      } else {  // as in f32, whose exponential overflows
        unary(y, a, [](T x) { return 1 / (1 + static_cast<T>(static_cast<float>(vector_exp(-x)))); });
      }
      break;
    case Op::log_f:
      unary(y, a, [](T x) { return std::log(x); });
      break;
    case Op::log2_f:
      unary(y, a, [](T x) { return std::log2(x); });
      break;
    case Op::log1p_f:
      unary(y, a, [](T x) { return std::log1p(x); });
      break;
    case Op::sqrt_f:
      unary(y, a, [](T x) { return std::sqrt(x); });
      break;
    case Op::rsqrt_f:
      unary(y, a, [](T x) { return 1 / std::sqrt(x); });
      break;
    case Op::sin_f:
      unary(y, a, [](T x) { return std::sin(x); });
      break;
    case Op::cos_f:
      unary(y, a, [](T x) { return std::cos(x); });
      break;
    case Op::tan_f:
      unary(y, a, [](T x) { return std::tan(x); });
      break;
    case Op::erf_f:
      unary(y, a, [](T x) { return std::erf(x); });
      break;
    case Op::pow_f:  // the exponent is a constant in in.number
      unary(y, a, [&](T x) { return power(x, number); });
      break;
    case Op::floor_f:
      unary(y, a, [](T x) { return std::floor(x); });
      break;
    case Op::ceil_f:
      unary(y, a, [](T x) { return std::ceil(x); });
      break;
    case Op::trunc_f:
      unary(y, a, [](T x) { return std::trunc(x); });
      break;
    case Op::round_f:  // ties to even
      unary(y, a, [](T x) { return std::nearbyint(x); });
      break;
    case Op::select_f:
      each([&](int i) { y[i] = ia[i] != 0 ? b[i] : c[i]; });
      break;
    case Op::gather_f:
      if (program.tables()[static_cast<size_t>(in.table)].dtype() == Dtype::f64) {
        gather_table<double>(program, in, ia, at, y);
      } else {
        gather_table<float>(program, in, ia, at, y);
      }
      break;
    default:
      break;
  }
  round_to(in.kind, y);
}

}  // namespace multihead::python
