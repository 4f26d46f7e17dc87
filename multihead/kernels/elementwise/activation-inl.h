// The activation functions and their derivatives, lane by lane: one functor per Activation.
//
//   relu       max(0, x)
//   gelu       x Φ(x)                                    derivative Φ(x) + x φ(x)
//   gelu_tanh  x σ(2u), u = √(2/π) (x + 0.044715 x³)     (½(1 + tanh u) = σ(2u), without its cancellation)
//   silu       x σ(x)                                    derivative σ (1 + x (1 - σ))

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_INL_H_
#undef MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_INL_H_
#else
#define MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_INL_H_
#endif

#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Value and slope at one point.
template <class V>
struct ValueAndSlope {
  V value;
  V slope;
};

template <Activation kActivation>
struct Activate {  // Activation::none
  template <class D, class V>
  static HWY_INLINE V Value(D, V x) {
    return x;
  }
  template <class D, class V>
  static HWY_INLINE ValueAndSlope<V> Both(D d, V x) {
    return {x, hn::Set(d, 1.0f)};
  }
};

template <>
struct Activate<Activation::relu> {
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // NaN stays, unlike in Max
  }
  template <class D, class V>
  static HWY_INLINE ValueAndSlope<V> Both(D d, V x) {
    return {Value(d, x), hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f))};
  }
};

template <>
struct Activate<Activation::gelu> {
  static constexpr float kBound = 13.269f;
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
#if HWY_TARGET == HWY_AVX3
    // One instruction, which takes the bound for NaN; the product is NaN all the same.
    if constexpr (sizeof(V) == 64) {
      const V a{_mm512_range_ps(x.raw, hn::Set(d, kBound).raw, 10)};
      return hn::Mul(x, FromTail(d, x, SplitNormal(d, a).tail));
    }
#endif
    return hn::Mul(x, FromTail(d, x, SplitNormal(d, Bounded(d, x)).tail));
  }
  template <class D, class V>
  static HWY_INLINE ValueAndSlope<V> Both(D d, V x) {
    const V a = Bounded(d, x);
    const NormalParts<V> p = SplitNormal(d, a);
    const V e = hn::MulAdd(p.power, p.rest, p.power);
    // a / √(2π) times 1 + La².
    const V times =
        hn::Mul(a, hn::MulAdd(hn::Mul(a, hn::Set(d, 9.19376994e-6f)), a, hn::Set(d, 0.398942280f)));
    return {hn::Mul(x, FromTail(d, x, p.tail)), FromTail(d, x, hn::NegMulAdd(times, e, p.tail))};
  }

 private:
  template <class D, class V>
  static HWY_INLINE V Bounded(D d, V x) {
    return AtMost(d, hn::Abs(x), kBound);
  }
};

template <>
struct Activate<Activation::gelu_tanh> {
  static constexpr float kLinear = 1.59576912f, kCubic = 0.0713548163f;  // 2√(2/π), times 0.044715
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    const V inner = hn::MulAdd(hn::Mul(x, x), hn::Set(d, kCubic), hn::Set(d, kLinear));
    return hn::Mul(x, Sigmoid(d, hn::Mul(x, inner)));
  }
  template <class D, class V>
  static HWY_INLINE ValueAndSlope<V> Both(D d, V x) {
    // Beyond 15 the slope is 1 or 0 and x³ may overflow.
    const V bounded = Clamp(d, x, -15.0f, 15.0f);
    const V square = hn::Mul(bounded, bounded);
    const V inner = hn::MulAdd(square, hn::Set(d, kCubic), hn::Set(d, kLinear));
    const V s = Sigmoid(d, hn::Mul(bounded, inner));
    const V d_inner = hn::MulAdd(square, hn::Set(d, 3 * kCubic), hn::Set(d, kLinear));
    const V rise = hn::Mul(hn::Mul(bounded, s), hn::Sub(hn::Set(d, 1.0f), s));
    return {hn::Mul(x, s), hn::MulAdd(rise, d_inner, s)};
  }
};

template <>
struct Activate<Activation::silu> {
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Mul(x, Sigmoid(d, x));
  }
  template <class D, class V>
  static HWY_INLINE ValueAndSlope<V> Both(D d, V x) {
    const V one = hn::Set(d, 1.0f);
    const V s = Sigmoid(d, x);
    const V bounded = Clamp(d, x, -120.0f, 120.0f);
    return {hn::Mul(x, s), hn::Mul(s, hn::MulAdd(bounded, hn::Sub(one, s), one))};
  }
};

// Calls f with the functor of an activation as a compile-time type.
template <class F>
HWY_INLINE void DispatchActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none:
      return f(Activate<Activation::none>());
    case Activation::relu:
      return f(Activate<Activation::relu>());
    case Activation::gelu:
      return f(Activate<Activation::gelu>());
    case Activation::gelu_tanh:
      return f(Activate<Activation::gelu_tanh>());
    case Activation::silu:
      return f(Activate<Activation::silu>());
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
