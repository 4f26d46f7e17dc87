// exp, log, tanh, sigmoid and the normal distribution's tail, lane by lane.
//
// Only adds, multiplies and FMAs in a fixed order: the same bits on every target with FMA. Coefficients come
// from tools/math/coefficients.py; the errors are listed in math_test.cc, which measures them.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATH_INL_H_
#undef MULTIHEAD_KERNELS_MATH_INL_H_
#else
#define MULTIHEAD_KERNELS_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// c[0] + c[1] x + … by Horner.
template <class D, class V>
HWY_INLINE V Polynomial(D d, V, float last) {
  return hn::Set(d, last);
}
template <class D, class V, class... Rest>
HWY_INLINE V Polynomial(D d, V x, float first, Rest... rest) {
  return hn::MulAdd(Polynomial(d, x, rest...), x, hn::Set(d, first));
}

// e^x = 2^n (1 + tail): n in the low bits of `shifted`, |log2(1 + tail)| <= 1/2.
template <class V>
struct ExpParts {
  V shifted;
  V mantissa;
};

// Reduction of x + low, |low| << |x|, |x| < 2^21. Adding 1.5·2^23 rounds to an integer and leaves it in the
// bits.
template <class D, class V>
HWY_INLINE ExpParts<V> SplitExp(D d, V x, V low) {
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln2 in two parts; the first has so few bits that n times it is exact also without FMA.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  r = hn::Add(r, low);
  const V q = Polynomial(d, r, 0.499999934f, 0.166665205f, 0.0416683899f, 0.00836873563f, 0.00138145591f);
  const V tail = hn::MulAdd(hn::Mul(r, r), q, r);
  return {shifted, hn::Add(hn::Set(d, 1.0f), tail)};
}

// e^x over the whole range, subnormal results and NaN included: 2^n in two factors, each of them normal.
template <class D, class V>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // The variable comes second: Min and Max of x86 return their second operand if one is NaN.
  x = hn::Min(hn::Set(d, 89.0f), hn::Max(hn::Set(d, -104.5f), x));
  const ExpParts<V> e = SplitExp(d, x, hn::Zero(d));
  const auto n = hn::Sub(hn::BitCast(di, e.shifted), hn::Set(di, 0x4B400000));
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::Mul(hn::Mul(e.mantissa, first), second);
}

// e^(x + low) for x <= 0, |low| << |x|; zero instead of results below 2^-126. NaN stays.
template <class D, class V>
HWY_INLINE V ExpNonPositive(D d, V x, V low) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.33654f);
  const auto tiny = hn::Lt(x, lowest);
  const ExpParts<V> e = SplitExp(d, hn::Max(lowest, x), low);
  const auto bits = hn::Add(hn::BitCast(di, e.mantissa), hn::ShiftLeft<23>(hn::BitCast(di, e.shifted)));
  return hn::IfThenZeroElse(tiny, hn::BitCast(d, bits));
}
template <class D, class V>
HWY_INLINE V ExpNonPositive(D d, V x) {
  return ExpNonPositive(d, x, hn::Zero(d));
}

// ln x. x = 2^n (1 + f) with 1 + f in [√½, √2).
template <class D, class V>
HWY_INLINE V Log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto subnormal = hn::Lt(x, hn::Set(d, 1.17549435e-38f));
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 8388608.0f)), x);
  const auto bits = hn::BitCast(di, scaled);
  const auto n = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3F3504F3)));
  const V f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(n))), hn::Set(d, 1.0f));
  const V e = hn::Sub(hn::ConvertTo(d, n), hn::IfThenElseZero(subnormal, hn::Set(d, 23.0f)));
  const V l = Polynomial(d, f, 0.333333317f, -0.250008211f, 0.200012273f, -0.166233535f, 0.142017437f,
                         -0.131602074f, 0.127616982f, -0.0763458441f);
  const V f2 = hn::Mul(f, f);
  // Small terms first: e·ln2_low, f³l, −f²/2, then f + e·ln2_high.
  V y = hn::MulAdd(hn::Mul(f2, f), l, hn::Mul(e, hn::Set(d, -2.12194440e-4f)));
  y = hn::NegMulAdd(hn::Set(d, 0.5f), f2, y);
  y = hn::MulAdd(e, hn::Set(d, 0.693359375f), hn::Add(y, f));
  const V infinity = hn::Set(d, __builtin_inff());
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
  const auto invalid = hn::Not(hn::Ge(x, hn::Zero(d)));  // negative or NaN
  return hn::IfThenElse(invalid, hn::Set(d, __builtin_nanf("")), y);
}

// 1 / (1 + e^-x) from e = e^-|x|: (x < 0 ? e : 1) / (1 + e), which never overflows and keeps its relative
// precision where it is small.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = Exp(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// tanh x: an odd polynomial up to 0.625, 1 - 2 / (1 + e^2|x|) beyond.
template <class D, class V>
HWY_INLINE V Tanh(D d, V x) {
  const V a = hn::Abs(x);
  const V t = hn::Mul(x, x);
  const V p = Polynomial(d, t, -0.333332819f, 0.133314422f, -0.0537397151f, 0.0206390874f, -0.00570498722f);
  const V small = hn::MulAdd(hn::Mul(t, x), p, x);
  const V one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const V e = ExpNonPositive(d, hn::Mul(hn::Set(d, -2.0f), a));
  const V large = hn::Sub(one, hn::Div(hn::Mul(two, e), hn::Add(one, e)));
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, hn::CopySignToAbs(large, x));
}

// Normal distribution: `tail` is the probability beyond |x|, `density` is e^(-x²/2).
template <class V>
struct Normal {
  V tail;
  V density;
};

// tail = e^(-a²/2) P(a)/Q(a), a = |x|: all coefficients are positive, so nothing cancels. The rounding error
// of a² goes into the exponential.
template <class D, class V>
HWY_INLINE Normal<V> NormalTail(D d, V x) {
  const V a = hn::Min(hn::Set(d, 15.0f), hn::Abs(x));
  const V square = hn::Mul(a, a);
  const V low = hn::MulSub(a, a, square);
  const V minus_half = hn::Set(d, -0.5f);
  const V e = ExpNonPositive(d, hn::Mul(minus_half, square), hn::Mul(minus_half, low));
  const V p = Polynomial(d, a, 0.5f, 0.438295043f, 0.1832352f, 0.0406332458f, 0.00411631149f);
  const V q = Polynomial(d, a, 1.0f, 1.67447507f, 1.20250341f, 0.469470793f, 0.10185889f, 0.010317943f);
  return {hn::Div(hn::Mul(e, p), q), e};
}

// Φ(x), from the tail: 1 - tail on the right.
template <class D, class V>
HWY_INLINE V NormalCdf(D d, V x, V tail) {
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
