// Functions of one number, one row each. A new function is a new row, its declaration in ops/elementwise.h, and
// its name in python/multihead/__init__.py.
//
// X(name, from_y, value, gradient, value64, slope64, text)
//
//   from_y     whether the derivative is computed from the result, rather than from the operand
//   value      f32, of the pack v, by lanes-inl.h and the functions in elementwise.cc
//   gradient   f32, of d, the gradient of the result, and s, the result or operand
//   value64    of the double x
//   slope64    the derivative from the double s
//   text       the formula, for Python
#pragma once

// clang-format off
#define MH_UNARY_FUNCTIONS(X) \
  X(neg,     false, Neg(v),               Neg(d),                          -x,                     -1.0,        "-x") \
  X(exp,     true,  Map(ExpOp(), v),      Mul(d, s),                       std::exp(x),            s,           "e^x") \
  X(log,     false, Map(LogOp(), v),      Div(d, s),                       std::log(x),            1 / s,       "Natural logarithm") \
  X(sqrt,    true,  Sqrt(v),              Div(Mul(d, Set(0.5f)), s),       std::sqrt(x),           0.5 / s,     "Square root") \
  X(tanh,    true,  Map(TanhOp(), v),     Mul(d, NegMulAdd(s, s, Set(1))), std::tanh(x),           1 - s * s,   "Hyperbolic tangent") \
  X(sigmoid, true,  Map(SigmoidOp(), v),  Mul(d, NegMulAdd(s, s, s)),      1 / (1 + std::exp(-x)), s * (1 - s), "1 / (1 + e^-x)") \
  X(square,  false, Mul(v, v),            Mul(d, Add(s, s)),               x * x,                  2 * s,       "x * x") \
  X(abs,         false, Map(AbsOp(), v),           Mul(d, Map(SignOp(), s)),          std::abs(x),            static_cast<double>((s > 0) - (s < 0)), "|x|; its derivative at 0 is 0") \
  X(softplus,    false, Map(SoftplusOp(), v),      Mul(d, Map(SigmoidOp(), s)),       softplus64(x),          1 / (1 + std::exp(-s)), "log(1 + e^x)") \
  X(log_sigmoid, false, Neg(Map(SoftplusOp(), Neg(v))), Mul(d, Map(SigmoidOp(), Neg(s))), -softplus64(-x),    1 / (1 + std::exp(s)),  "log(1 / (1 + e^-x)), without overflow")
// clang-format on
