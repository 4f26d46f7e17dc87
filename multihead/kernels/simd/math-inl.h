// exp, log, tanh, sigmoid and the normal distribution's tail, lane by lane.
//
// Only adds, multiplies, divisions and FMAs in a fixed order: the same bits on every target with FMA.
// Coefficients come from tools/math/coefficients.py. Largest errors in ulp over every 211th float
// (math_test.cc): exp 1.01, log 0.81, tanh 1.41, sigmoid 2.29, silu 3.07, gelu 5.6 with FMA; without,
// gelu loses up to 70 in its far left tail. silu and gelu keep their relative precision down to 1e-36. Zen 5,
// 512-bit, in L2, ns per 16 elements: exp 1.5, tanh 3.7, gelu 2.4, silu 2.0 (November 2026).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "multihead/kernels/simd/lookup-inl.h"

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

// Reduction of x, |x| < 2^21. Adding 1.5·2^23 rounds to an integer and leaves it in the bits.
inline constexpr float kRoundingMagic = 12582912.0f;
inline constexpr float kExpMagic = kRoundingMagic + 127;
template <class D, class V>
HWY_INLINE ExpParts<V> SplitExp(D d, V x) {
  const V magic = hn::Set(d, kExpMagic);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln2 in two parts; the first has so few bits that n times it is exact also without FMA.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
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

// e^x for x <= 0; zero below 2^-126. NaN stays.
template <class D, class V>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  constexpr float kLowest = -87.33654f;
  const auto tiny = hn::Lt(x, hn::Set(d, kLowest));
  const ExpParts<V> e = SplitExp(d, AtLeast(d, x, kLowest));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, e.shifted)));
  return hn::IfThenZeroElse(tiny, hn::Mul(hn::Add(e.tail, hn::Set(d, 1.0f)), power));
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

// tanh x: an odd polynomial up to 0.625, 1 - 2 / (1 + e^2|x|) beyond, where the polynomial must not overflow.
template <class D, class V>
HWY_INLINE V Tanh(D d, V x) {
  const V a = hn::Abs(x), near = hn::Min(a, hn::Set(d, 1.0f));
  const V t = hn::Mul(near, near);
  const V p = Polynomial(d, t, -0.333332819f, 0.133314422f, -0.0537397151f, 0.0206390874f, -0.00570498722f);
  const V small = hn::MulAdd(hn::Mul(t, near), p, near);
  const V one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const V e = ExpNonPositive(d, hn::Mul(hn::Set(d, -2.0f), a));
  const V large = hn::Sub(one, hn::Div(hn::Mul(two, e), hn::Add(one, e)));
  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, large), x);
}

// Polynomials of Mills' ratio by quarters of the octaves of t = a + 1, in t's mantissa from where a quarter
// starts; the powers from 0 to 5.
alignas(64) inline constexpr float kMills[6][16] = {
    {0.261584312f, 0.205791339f, 0.168117493f, 0.141351685f, 0.121539146f, 0.0944454595f, 0.0769636333f,
     0.0648330823f, 0.0559566319f, 0.0438806228f, 0.0360753462f, 0.0306284707f, 0.5f, 0.414032698f,
     0.349620849f, 0.300236344f},
    {-0.27470839f, -0.18052347f, -0.125456363f, -0.0912077352f, -0.137560844f, -0.0851602778f, -0.0573450252f,
     -0.0410284735f, -0.0614271574f, -0.037950635f, -0.025673693f, -0.0184848588f, -0.398942083f,
     -0.295429915f, -0.224126428f, -0.173758194f},
    {0.248353556f, 0.140736818f, 0.0852229744f, 0.0545677654f, 0.146395236f, 0.0736707896f, 0.0415162146f,
     0.0254623014f, 0.0664411113f, 0.0326317362f, 0.0182891563f, 0.0112291817f, 0.250000328f, 0.170090094f,
     0.118788414f, 0.0849035531f},
    {-0.199371621f, -0.0996628851f, -0.05325168f, -0.0303402096f, -0.146025002f, -0.0609149896f,
     -0.0290713646f, -0.0155785149f, -0.069630906f, -0.027479887f, -0.0128892856f, -0.00677438825f,
     -0.132782117f, -0.0842263848f, -0.0549850874f, -0.0360977724f},
    {0.137893677f, 0.0627218336f, 0.0292270202f, 0.0145943929f, 0.12727122f, 0.0455381535f, 0.0188092086f,
     0.00961019378f, 0.0648565888f, 0.021245243f, 0.008735938f, 0.00404007407f, 0.0607995875f, 0.0364575014f,
     0.0228971764f, 0.0115601672f},
    {-0.0629177094f, -0.0274464302f, -0.0105042579f, -0.00412043324f, -0.0703454465f, -0.0228045154f,
     -0.00849423092f, -0.00496825995f, -0.0380477272f, -0.0109768696f, -0.00435796194f, -0.00190990407f,
     -0.0200490598f, -0.0116515178f, -0.00764618674f, -7.32695044e-05f}};

template <int kPower, class D, class V, class VI>
HWY_INLINE V MillsFrom(D d, V u, VI piece) {
  const V c = Lookup(d, kMills[kPower], piece);
  if constexpr (kPower < 5) return hn::MulAdd(MillsFrom<kPower + 1>(d, u, piece), u, c);
  return c;
}

template <class D, class V>
HWY_INLINE V MillsRatio(D d, V a) {
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, 1.0f);
  const auto t = hn::BitCast(di, hn::Add(a, one));
  const auto mantissa = hn::OrAnd(hn::BitCast(di, one), t, hn::Set(di, 0x1fffff));
  return MillsFrom<0>(d, hn::Sub(hn::BitCast(d, mantissa), one), hn::ShiftRight<21>(t));
}

// e^(-a²/2) = e^(La²) power (1 + rest), the probability beyond a is tail; L = 2.3045e-5.
template <class V>
struct NormalParts {
  V power;
  V rest;
  V tail;
};

// 0 <= a <= 13.269, where the power becomes exactly 0, or NaN.
//
// n = round(-4a²/ln2) goes into the power as in attention's PowerOfParts. r = a² + n·step: the step is ln2/4
// with so few bits that n·step is exact, and a² is never rounded. What the step lacks amounts to e^(La²) and
// a factor of r; the fits of Mills' ratio (error 9e-8, below a = 3 a quarter of it) and of rest(r) (2.6e-8)
// include them. Tables instead of a rational function take half the multiply-adds and no division.
template <class D, class V>
HWY_INLINE NormalParts<V> SplitNormal(D d, V a) {
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, kRoundingMagic);
  const V shifted = hn::MulAdd(hn::Mul(a, hn::Set(d, -5.77078009f)), a, magic);
  const V r = hn::MulAdd(a, a, hn::Mul(hn::Sub(shifted, magic), hn::Set(d, 0.17327880859375f)));
  const V rest = hn::Mul(r, Polynomial(d, r, -0.50002307f, 0.125027817f, -0.0208332358f));
  const auto n = hn::BitCast(di, shifted);
  const V power = hn::BitCast(d, hn::Add(EighthPower(di, n), hn::ShiftLeft<20>(n)));

  const V scaled = hn::Mul(MillsRatio(d, a), power);
  return {power, rest, hn::MulAdd(scaled, rest, scaled)};
}

// tail where x < 0, 1 - tail elsewhere.
template <class D, class V>
HWY_INLINE V FromTail(D d, V x, V tail) {
  const V one = hn::Set(d, 1.0f);
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(V) == 64) {
    return V{_mm512_mask_sub_ps(tail.raw, hn::Ge(x, hn::Zero(d)).raw, one.raw, tail.raw)};
  }
#endif
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
