// exp, log, tanh, sigmoid and the normal distribution's tail, lane by lane.
//
// Only adds, multiplies, divisions and FMAs in a fixed order: the same bits on every target with FMA.
// Coefficients come from tools/math/coefficients.py. Largest errors in ulp over every 211th float
// (math_test.cc): exp 1.01, log 0.81, tanh 1.41, sigmoid 2.29, silu 3.07, gelu 5.8 with FMA; without,
// gelu loses up to 70 in its far left tail. silu and gelu keep their relative precision down to 1e-36. Zen 5,
// 512-bit, in L2, ns per 16 elements: exp 1.5, tanh 3.7, gelu 3.6, silu 2.0 (November 2026).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
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

// max(x, low) and min(x, high), but NaN stays: x86 returns the second operand then, others may lose it.
template <class D, class V>
HWY_INLINE V AtLeast(D d, V x, float low) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::Max(hn::Set(d, low), x);
#else
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, low)), hn::Set(d, low), x);
#endif
}
template <class D, class V>
HWY_INLINE V AtMost(D d, V x, float high) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::Min(hn::Set(d, high), x);
#else
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, high)), hn::Set(d, high), x);
#endif
}
template <class D, class V>
HWY_INLINE V Clamp(D d, V x, float low, float high) {
  return AtMost(d, AtLeast(d, x, low), high);
}

// e^x = 2^n (1 + tail): n + 127 in the low bits of `shifted`, |log2(1 + tail)| <= 1/2.
template <class V>
struct ExpParts {
  V shifted;
  V n;
  V tail;
};

// Reduction of x, or of x + low with |low| << |x|; |x| < 2^21. Adding 1.5·2^23 rounds to an integer and
// leaves it in the bits.
inline constexpr float kExpMagic = 12582912.0f + 127;
template <class D, class V, class... Low>
HWY_INLINE ExpParts<V> SplitExp(D d, V x, Low... low) {
  const V magic = hn::Set(d, kExpMagic);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln2 in two parts; the first has so few bits that n times it is exact also without FMA.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  ((r = hn::Add(r, low)), ...);
  const V q = Polynomial(d, r, 0.499999934f, 0.166665205f, 0.0416683899f, 0.00836873563f, 0.00138145591f);
  return {shifted, n, hn::MulAdd(hn::Mul(r, r), q, r)};
}

// e^x for x <= 89 or NaN, subnormal results included: 2^n in two factors, each of them normal.
template <class D, class V>
HWY_INLINE V ExpUpTo89(D d, V x) {
  const ExpParts<V> e = SplitExp(d, AtLeast(d, x, -104.5f));
  const V mantissa = hn::Add(hn::Set(d, 1.0f), e.tail);
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(mantissa.raw, e.n.raw)};  // the same bits
#endif
  const hn::RebindToSigned<D> di;
  const auto biased = hn::Sub(hn::BitCast(di, e.shifted), hn::Set(di, 0x4B400000));  // n + 127
  const auto half = hn::ShiftRight<1>(biased);
  // 2^(half - 63) and 2^(biased - half - 64).
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, hn::Set(di, 64))));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(biased, half), hn::Set(di, 63))));
  return hn::Mul(hn::Mul(mantissa, first), second);
}
template <class D, class V>
HWY_INLINE V Exp(D d, V x) {
  return ExpUpTo89(d, AtMost(d, x, 89.0f));
}

// factor · e^(x + low) for x <= 0, |low| << |x|; zero instead of e^x below 2^-126. NaN stays.
template <class D, class V, class... Low>
HWY_INLINE V TimesExpNonPositive(D d, V factor, V x, Low... low) {
  const hn::RebindToSigned<D> di;
  constexpr float kLowest = -87.33654f;
  const auto tiny = hn::Lt(x, hn::Set(d, kLowest));
  const ExpParts<V> e = SplitExp(d, AtLeast(d, x, kLowest), low...);
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, e.shifted)));
  return hn::IfThenZeroElse(tiny, hn::Mul(hn::MulAdd(e.tail, factor, factor), power));
}
template <class D, class V>
HWY_INLINE V ExpNonPositive(D d, V x) {
  return TimesExpNonPositive(d, hn::Set(d, 1.0f), x);
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
  const V e = ExpUpTo89(d, hn::Or(x, hn::Set(d, -0.0f)));
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

// The normal distribution's probability beyond |x| is e^(-x²/2) times this: P(a)/Q(a), a = |x|. All
// coefficients are positive, so nothing cancels.
template <class D, class V>
HWY_INLINE V MillsRatio(D d, V a) {
  const V p = Polynomial(d, a, 0.5f, 0.438295043f, 0.1832352f, 0.0406332458f, 0.00411631149f);
  const V q = Polynomial(d, a, 1.0f, 1.67447507f, 1.20250341f, 0.469470793f, 0.10185889f, 0.010317943f);
  return hn::Div(p, q);
}

// factor · e^(-a²/2); the rounding error of a² goes into the exponential.
template <class D, class V>
HWY_INLINE V TimesNormalDensity(D d, V factor, V a) {
  const V half = hn::Mul(hn::Set(d, -0.5f), a), x = hn::Mul(half, a), low = hn::MulSub(half, a, x);
  return TimesExpNonPositive(d, factor, x, low);
}

// Φ(x), from the tail: 1 - tail on the right.
template <class D, class V>
HWY_INLINE V NormalCdf(D d, V x, V tail) {
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
