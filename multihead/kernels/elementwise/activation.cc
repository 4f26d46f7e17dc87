// One pass over the input and one over the output; the gradients recompute the value instead of storing it.
#include "multihead/kernels/elementwise/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

#ifndef MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_ONCE
#define MULTIHEAD_KERNELS_ELEMENTWISE_ACTIVATION_ONCE
namespace multihead::kernels {

// The arguments of a call from some element on.
template <class From, class To>
struct ValueArgs {
  const From* x;
  To* y;
  ValueArgs at(int64_t i) const { return {x + i, y + i}; }
};
template <class From>
struct BackwardArgs {
  const From* x;
  const float* dy;
  float* dx;
  BackwardArgs at(int64_t i) const { return {x + i, dy + i, dx + i}; }
};
template <class T>
struct WithSlopeArgs {
  const T* x;
  T* y;
  float* slope;
  WithSlopeArgs at(int64_t i) const { return {x + i, y + i, slope + i}; }
};
template <class T>
struct GatedArgs {
  const T* gate;
  const T* up;
  T* y;
};
template <class T>
struct GatedBackwardArgs {
  const T* gate;
  const T* up;
  GatedGradients<float> g;
};
using AnyArgs = std::variant<ValueArgs<float, float>, ValueArgs<BFloat16, float>,
                             ValueArgs<BFloat16, BFloat16>, BackwardArgs<float>, BackwardArgs<BFloat16>,
                             WithSlopeArgs<float>, WithSlopeArgs<BFloat16>, GatedArgs<float>,
                             GatedArgs<BFloat16>, GatedBackwardArgs<float>, GatedBackwardArgs<BFloat16>>;

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Plain loops are called for each vector: hundreds of them in one function take Clang 22 minutes.
#if HWY_TARGET == HWY_EMU128
#define MULTIHEAD_VECTOR_FUNCTION HWY_NOINLINE
#else
#define MULTIHEAD_VECTOR_FUNCTION HWY_INLINE
#endif

template <class Function>
struct ValueOf {
  MULTIHEAD_VECTOR_FUNCTION FloatVec operator()(FloatVec x) const { return Function::Value(Floats(), x); }
};
template <class Function>
struct SlopeTimes {
  MULTIHEAD_VECTOR_FUNCTION FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::Mul(Function::Both(Floats(), x).slope, dy);
  }
};
template <class Function>
struct ValueAndSlopeOf {
  MULTIHEAD_VECTOR_FUNCTION void operator()(FloatVec& value, FloatVec& slope, FloatVec x) const {
    const auto f = Function::Both(Floats(), x);
    value = f.value;
    slope = f.slope;
  }
};
template <class Function>
struct GatedSlopes {
  MULTIHEAD_VECTOR_FUNCTION void operator()(FloatVec& d_gate, FloatVec& d_up, FloatVec gate, FloatVec up,
                                            FloatVec dy) const {
    const auto f = Function::Both(Floats(), gate);
    d_gate = hn::Mul(hn::Mul(dy, up), f.slope);
    d_up = hn::Mul(dy, f.value);
  }
};

#undef MULTIHEAD_VECTOR_FUNCTION

#if HWY_TARGET == HWY_AVX3
// WideAccess where every array is bf16: the even elements of 32 are one pack, the odd ones another. A word's
// halves become floats, and go back, with an instruction each.
struct HalvesAccess {
  using Words = hn::RebindToUnsigned<Floats>;
  using Word = hn::Vec<Words>;
  HWY_INLINE PackOf<4> Load(const BFloat16* p) const { return {LoadTwo(p), LoadTwo(p + 2 * kPack)}; }
  HWY_INLINE void Store(PackOf<4> a, BFloat16* p) const {
    if (HWY_UNLIKELY(AnyNan(a.low) | AnyNan(a.high))) a = Map(QuietNan(), a);
    StoreTwo(a.low, p);
    StoreTwo(a.high, p + 2 * kPack);
  }

 private:
  static HWY_INLINE Word Upper(Word a) { return hn::And(a, hn::Set(Words(), 0xffff0000u)); }

  static HWY_INLINE PackOf<2> LoadTwo(const BFloat16* p) {
    const Word both{_mm512_loadu_si512(p)};
    const Floats d;
    return {{hn::BitCast(d, hn::ShiftLeft<16>(both))}, {hn::BitCast(d, Upper(both))}};
  }
  static HWY_INLINE void StoreTwo(PackOf<2> a, BFloat16* p) {
    const Word even = hn::ShiftRight<16>(Rounded(a.low.v)), odd = Rounded(a.high.v);
    _mm512_storeu_si512(p, hn::Or(even, Upper(odd)).raw);
  }

  // BFloat16(v) in the upper halves, to nearest even; NaN only with zeros below.
  static HWY_INLINE Word Rounded(FloatVec v) {
    const __m512i bits = hn::BitCast(Words(), v).raw;
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return Word{_mm512_mask_add_epi32(rounded, odd, bits, _mm512_set1_epi32(0x8000))};
  }

  static HWY_INLINE int AnyNan(PackOf<2> a) {
    return _mm512_cmp_ps_mask(a.low.v.raw, a.high.v.raw, _CMP_UNORD_Q);
  }
  // NaN made quiet, as BFloat16 does, with zeros below.
  struct QuietNan {
    HWY_INLINE FloatVec operator()(FloatVec v) const {
      const Word quiet = hn::Or(hn::BitCast(Words(), v), hn::Set(Words(), 0x400000u));
      return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(Floats(), Upper(quiet)), v);
    }
  };
};
#endif

template <class Args>
inline constexpr bool kOnlyHalves = false;
template <>
inline constexpr bool kOnlyHalves<ValueArgs<BFloat16, BFloat16>> = true;
template <>
inline constexpr bool kOnlyHalves<GatedArgs<BFloat16>> = true;

template <class Args, class F>
HWY_INLINE void ForSteps(const Args&, int64_t count, const F& f) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kOnlyHalves<Args>) {
    int64_t i = 0;
    for (; i + WideAccess::kSize <= count; i += WideAccess::kSize) f(i, HalvesAccess());
    return ForPacks(count - i, [&](int64_t j, auto at) HWY_ATTR { f(i + j, at); });
  }
#endif
  ForWidePacks(count, f);
}

// One pack at offset i of the arrays.
template <class Function, class From, class To, class At>
HWY_INLINE void Step(Function, const ValueArgs<From, To>& a, int64_t i, At at) {
  at.Store(Map(ValueOf<Function>(), at.Load(a.x + i)), a.y + i);
}
template <class Function, class From, class At>
HWY_INLINE void Step(Function, const BackwardArgs<From>& a, int64_t i, At at) {
  at.Store(Map(SlopeTimes<Function>(), at.Load(a.x + i), at.Load(a.dy + i)), a.dx + i);
}
template <class Function, class T, class At>
HWY_INLINE void Step(Function, const WithSlopeArgs<T>& a, int64_t i, At at) {
  auto value = at.Load(a.x + i), slope = value;
  MapInto(ValueAndSlopeOf<Function>(), value, slope, value);
  at.Store(value, a.y + i);
  at.Store(slope, a.slope + i);
}
template <class Function, class T, class At>
HWY_INLINE void Step(Function, const GatedArgs<T>& a, int64_t i, At at) {
  at.Store(Map(MulOp(), Map(ValueOf<Function>(), at.Load(a.gate + i)), at.Load(a.up + i)), a.y + i);
}
template <class Function, class T, class At>
HWY_INLINE void Step(Function, const GatedBackwardArgs<T>& a, int64_t i, At at) {
  auto d_gate = at.Load(a.gate + i), d_up = at.Load(a.up + i);
  MapInto(GatedSlopes<Function>(), d_gate, d_up, d_gate, d_up, at.Load(a.g.dy + i));
  at.Store(d_gate, a.g.d_gate + i);
  at.Store(d_up, a.g.d_up + i);
}

// A function of its own: with all of them inlined into one, optimisers take minutes (Clang 22).
template <class Function, class Args>
HWY_NOINLINE void RunOne(const Args& args, int64_t count) {
  ForSteps(args, count, [&](int64_t i, auto at) HWY_ATTR { Step(Function(), args, i, at); });
}

void Run(Activation activation, const AnyArgs& any, int64_t count) {
  std::visit(
      [&](const auto& args) HWY_ATTR {
        DispatchActivation(activation,
                           [&](auto function) HWY_ATTR { RunOne<decltype(function)>(args, count); });
      },
      any);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
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

HWY_EXPORT(Run);

template <class Args>
void run_ranges(Activation activation, const Args& args, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(Run);
  parallel_ranges(count, kGrain,
                  [&](int64_t begin, int64_t end) { run(activation, args.at(begin), end - begin); });
}

// args_of(first element of a row of gate and up, of the result).
template <class F>
void run_rows(Activation activation, const GatedRows& rows, F&& args_of) {
  const auto run = HWY_DYNAMIC_DISPATCH(Run);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(rows.size, 1));
  parallel_ranges(rows.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      run(activation, args_of(row * rows.stride, row * rows.size), rows.size);
    }
  });
}

}  // namespace

template <class From, class To>
void activate(Activation activation, const From* x, To* y, int64_t count) {
  run_ranges(activation, ValueArgs<From, To>{x, y}, count);
}
template void activate(Activation, const float*, float*, int64_t);
template void activate(Activation, const BFloat16*, float*, int64_t);
template void activate(Activation, const BFloat16*, BFloat16*, int64_t);

void activate(Activation activation, const double* x, double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = evaluate(activation, x[i]).value;
}

template <class From>
void activate_backward(Activation activation, const From* x, const float* dy, float* dx, int64_t count) {
  run_ranges(activation, BackwardArgs<From>{x, dy, dx}, count);
}
template void activate_backward(Activation, const float*, const float*, float*, int64_t);
template void activate_backward(Activation, const BFloat16*, const float*, float*, int64_t);

void activate_backward(Activation activation, const double* x, const double* dy, double* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * evaluate(activation, x[i]).slope;
}

template <class T>
void activate_with_slope(Activation activation, const T* x, T* y, float* slope, int64_t count) {
  run_ranges(activation, WithSlopeArgs<T>{x, y, slope}, count);
}
template void activate_with_slope(Activation, const float*, float*, float*, int64_t);
template void activate_with_slope(Activation, const BFloat16*, BFloat16*, float*, int64_t);

void activate_with_slope(Activation activation, const double* x, double* y, double* slope, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Point f = evaluate(activation, x[i]);
    y[i] = f.value;
    slope[i] = f.slope;
  }
}

template <class T>
void gated(Activation activation, const T* gate, const T* up, T* y, const GatedRows& rows) {
  run_rows(activation, rows, [&](int64_t at, int64_t to) {
    return GatedArgs<T>{gate + at, up + at, y + to};
  });
}
template void gated(Activation, const float*, const float*, float*, const GatedRows&);
template void gated(Activation, const BFloat16*, const BFloat16*, BFloat16*, const GatedRows&);

void gated(Activation activation, const double* gate, const double* up, double* y, const GatedRows& rows) {
  for (int64_t row = 0; row < rows.count; ++row, gate += rows.stride, up += rows.stride, y += rows.size) {
    for (int64_t i = 0; i < rows.size; ++i) y[i] = evaluate(activation, gate[i]).value * up[i];
  }
}

template <class T>
void gated_backward(Activation activation, const T* gate, const T* up, const GatedGradients<float>& g,
                    const GatedRows& rows) {
  run_rows(activation, rows, [&](int64_t at, int64_t from) {
    return GatedBackwardArgs<T>{gate + at, up + at, {g.dy + from, g.d_gate + at, g.d_up + at}};
  });
}
template void gated_backward(Activation, const float*, const float*, const GatedGradients<float>&,
                             const GatedRows&);
template void gated_backward(Activation, const BFloat16*, const BFloat16*, const GatedGradients<float>&,
                             const GatedRows&);

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
