// Numbers that carry a derivative: f(Dual{x, 1}) = {f(x), f'(x)}.
#pragma once

#include <cmath>

namespace multihead {

/// value + derivative · ε with ε² = 0. Everything a score function may do has an overload below; write
/// `using std::tanh;` in a generic function so that both the plain and the dual version are found.
template <class T>
struct Dual {
  T value = 0;
  T derivative = 0;

  Dual() = default;
  Dual(T value) : value(value) {}  // NOLINT(google-explicit-constructor): constants have derivative 0
  Dual(T value, T derivative) : value(value), derivative(derivative) {}

  friend Dual operator-(Dual a) { return {-a.value, -a.derivative}; }
  friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.derivative + b.derivative}; }
  friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.derivative - b.derivative}; }
  friend Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.derivative * b.value + a.value * b.derivative};
  }
  friend Dual operator/(Dual a, Dual b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.derivative - quotient * b.derivative) / b.value};
  }
  Dual& operator+=(Dual b) { return *this = *this + b; }
  Dual& operator-=(Dual b) { return *this = *this - b; }
  Dual& operator*=(Dual b) { return *this = *this * b; }
  Dual& operator/=(Dual b) { return *this = *this / b; }

  // Comparisons look at the value.
  friend bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend bool operator==(Dual a, Dual b) { return a.value == b.value; }

  friend Dual exp(Dual a) {
    const T y = std::exp(a.value);
    return {y, y * a.derivative};
  }
  friend Dual log(Dual a) { return {std::log(a.value), a.derivative / a.value}; }
  friend Dual log1p(Dual a) { return {std::log1p(a.value), a.derivative / (1 + a.value)}; }
  friend Dual expm1(Dual a) { return {std::expm1(a.value), std::exp(a.value) * a.derivative}; }
  friend Dual sqrt(Dual a) {
    const T y = std::sqrt(a.value);
    return {y, a.derivative / (2 * y)};
  }
  friend Dual sin(Dual a) { return {std::sin(a.value), std::cos(a.value) * a.derivative}; }
  friend Dual cos(Dual a) { return {std::cos(a.value), -std::sin(a.value) * a.derivative}; }
  friend Dual atan(Dual a) { return {std::atan(a.value), a.derivative / (1 + a.value * a.value)}; }
  friend Dual tanh(Dual a) {
    const T y = std::tanh(a.value);
    return {y, (1 - y * y) * a.derivative};
  }
  friend Dual erf(Dual a) {
    const T two_over_sqrt_pi = T(1.1283791670955126);
    return {std::erf(a.value), two_over_sqrt_pi * std::exp(-a.value * a.value) * a.derivative};
  }
  friend Dual pow(Dual a, T exponent) {
    return {std::pow(a.value, exponent), exponent * std::pow(a.value, exponent - 1) * a.derivative};
  }
  /// The derivative at 0 is 0.
  friend Dual abs(Dual a) {
    return {std::abs(a.value), a.value > 0 ? a.derivative : (a.value < 0 ? -a.derivative : T(0))};
  }
  friend Dual fabs(Dual a) { return abs(a); }
  /// Ties take the first argument.
  friend Dual max(Dual a, Dual b) { return b.value > a.value ? b : a; }
  friend Dual min(Dual a, Dual b) { return b.value < a.value ? b : a; }
};

}  // namespace multihead
