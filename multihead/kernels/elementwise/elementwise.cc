// All of these are bound by memory: ranges of some 32 KiB go to the threads.
#include "multihead/kernels/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/tensor/copy-inl.h"
#include "multihead/core/tensor/element_loops-inl.h"
#include "multihead/core/tensor/strided_walk-inl.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/simd/lanes-inl.h"
#include "multihead/kernels/simd/math-inl.h"

#ifndef MULTIHEAD_KERNELS_ELEMENTWISE_ONCE
#define MULTIHEAD_KERNELS_ELEMENTWISE_ONCE
namespace multihead::kernels {

// Consecutive rows of y: y[i] = op(a[i · step_a], b[i · step_b]).
template <class T>
struct BinaryArgs {
  const T* a;
  const T* b;
  T* y;
  int64_t step_a, step_b, count;
  int64_t row_a = 0, row_b = 0, rows = 1;

  // f on every row by itself.
  template <class F>
  void each(F&& f) const {
    BinaryArgs row = *this;
    for (int64_t i = 0; i < rows; ++i, row.a += row_a, row.b += row_b, row.y += count) f(row);
  }
};

struct Plus {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Minus {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Times {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Over {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Larger {
  template <class T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct Smaller {
  template <class T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Power {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
};

template <class F>
void dispatch_binary(Binary op, const F& f) {
  switch (op) {
    case Binary::add:
      return f(Plus());
    case Binary::sub:
      return f(Minus());
    case Binary::mul:
      return f(Times());
    case Binary::div:
      return f(Over());
    case Binary::maximum:
      return f(Larger());
    case Binary::minimum:
      return f(Smaller());
    case Binary::pow:
      return f(Power());
  }
}

// bf16 is computed in f32 and rounded once.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T, class Op>
void binary_row_plain(const BinaryArgs<T>& r, Op op) {
  using C = Computed<T>;
  for (int64_t i = 0; i < r.count; ++i) {
    r.y[i] = static_cast<T>(op(static_cast<C>(r.a[i * r.step_a]), static_cast<C>(r.b[i * r.step_b])));
  }
}

template <class T>
void select_plain(const bool* mask, const T* a, const T* b, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T* chosen = mask[i] ? a : b;
    y[i] = chosen == nullptr ? T{0} : chosen[i];
  }
}

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

HWY_INLINE Pack Apply(Plus, Pack a, Pack b) { return Add(a, b); }
HWY_INLINE Pack Apply(Minus, Pack a, Pack b) { return Sub(a, b); }
HWY_INLINE Pack Apply(Times, Pack a, Pack b) { return Mul(a, b); }
HWY_INLINE Pack Apply(Over, Pack a, Pack b) { return Div(a, b); }
struct LargerOp {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct SmallerOp {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
HWY_INLINE Pack Apply(Larger, Pack a, Pack b) { return Map(LargerOp(), a, b); }
HWY_INLINE Pack Apply(Smaller, Pack a, Pack b) { return Map(SmallerOp(), a, b); }

// What the lanes behind a row's end divide by: 0 / 0 would be an exception to hosts that trap them.
constexpr float kUnit = 1.0f;

template <class Op, class T>
HWY_INLINE void BinaryRow(Op op, const BinaryArgs<T>& r) {
  // Copies stay in registers; members would be read again after each store.
  const T *a = r.a, *b = r.b;
  T* y = r.y;
  if constexpr (std::is_same_v<Op, Power>) {
    binary_row_plain(r, op);
  } else if (r.step_a == 1 && r.step_b == 1) {
    ForPacks(r.count, [&](int64_t i, auto at)
                          HWY_ATTR { at.Store(Apply(op, at.Load(a + i), at.Load(b + i, kUnit)), y + i); });
  } else if (r.step_a == 1 && r.step_b == 0) {
    const Pack vb = Set(static_cast<float>(*b));
    ForPacks(r.count, [&](int64_t i, auto at) HWY_ATTR { at.Store(Apply(op, at.Load(a + i), vb), y + i); });
  } else if (r.step_a == 0 && r.step_b == 1) {
    const Pack va = Set(static_cast<float>(*a));
    ForPacks(r.count,
             [&](int64_t i, auto at) HWY_ATTR { at.Store(Apply(op, va, at.Load(b + i, kUnit)), y + i); });
  } else {
    binary_row_plain(r, op);
  }
}

template <class T>
HWY_INLINE void BinaryRowsOf(Binary binary_op, const BinaryArgs<T>& rows) {
  dispatch_binary(binary_op, [&](auto op) HWY_ATTR {
    rows.each([&](const BinaryArgs<T>& row) HWY_ATTR { BinaryRow(op, row); });
  });
}
void BinaryRows(Binary op, const BinaryArgs<float>& rows) { BinaryRowsOf(op, rows); }
void BinaryRowsBf16(Binary op, const BinaryArgs<BFloat16>& rows) { BinaryRowsOf(op, rows); }

struct ExpOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return Exp(Floats(), x); }
};
struct LogOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return Log(Floats(), x); }
};
struct TanhOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return Tanh(Floats(), x); }
};
struct SigmoidOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return Sigmoid(Floats(), x); }
};

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|). With u = 1 + e, rounded, ln(u)·e / (u - 1) has the relative precision
// that ln(u) lacks for a small e (Kahan).
struct SoftplusOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const Floats d;
    const FloatVec one = hn::Set(d, 1.0f), e = ExpNonPositive(d, hn::Or(x, hn::Set(d, -0.0f)));
    const FloatVec u = hn::Add(one, e);
    const auto is_lost = hn::Eq(u, one);
    const FloatVec rest = hn::IfThenElse(is_lost, one, hn::Sub(u, one)),
                   tail = hn::Div(hn::Mul(Log(d, u), e), rest);
    return hn::Add(AtLeast(d, x, 0.0f), hn::IfThenElse(is_lost, e, tail));
  }
};
struct AbsOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Abs(x); }
};
struct SignOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const FloatVec one = hn::Set(Floats(), 1.0f);
    return hn::IfThenElseZero(hn::Gt(hn::Abs(x), hn::Zero(Floats())), hn::CopySign(one, x));
  }
};

template <class F>
HWY_INLINE void Transform(const float* x, float* y, int64_t count, const F& f) {
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { at.Store(f(at.Load(x + i)), y + i); });
}

void UnaryRun(Unary op, const float* x, float* y, int64_t count) {
  switch (op) {
#define MH_UNARY(name, from_y, value, ...) \
  case Unary::name:                        \
    return Transform(x, y, count, [](Pack v) HWY_ATTR { return value; });
    MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  }
}

template <class F>
HWY_INLINE void Combine(const float* saved, const float* dy, float* dx, int64_t count, const F& f) {
  ForPacks(count, [&](int64_t i, auto at)
                      HWY_ATTR { at.Store(f(at.Load(saved + i, kUnit), at.Load(dy + i)), dx + i); });
}

void UnaryBackwardRun(Unary op, const float* saved, const float* dy, float* dx, int64_t count) {
  switch (op) {
#define MH_UNARY(name, from_y, value, gradient, ...) \
  case Unary::name:                                  \
    return Combine(saved, dy, dx, count, []([[maybe_unused]] Pack s, Pack d) HWY_ATTR { return gradient; });
    MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  }
}

void AffineRun(const float* x, float* y, int64_t count, float factor, float offset) {
  const Pack f = Set(factor), o = Set(offset);
  Transform(x, y, count, [&](Pack v) HWY_ATTR { return Add(Mul(v, f), o); });
}

// y[i] = mask[i] ? a[i] : b[i], zero where it comes from neither.
void SelectRun(const bool* mask, const float* a, const float* b, float* y, int64_t count) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> words;
  const hn::Rebind<uint8_t, Floats> bytes;
  const auto load = [&](const float* from, int64_t i)
                        HWY_ATTR { return from != nullptr ? hn::LoadU(d, from + i) : hn::Zero(d); };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto flags = hn::PromoteTo(words, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(mask + i)));
    const auto chosen = hn::RebindMask(d, hn::Ne(flags, hn::Zero(words)));
    hn::StoreU(hn::IfThenElse(chosen, load(a, i), load(b, i)), d, y + i);
  }
  select_plain(mask + i, a == nullptr ? a : a + i, b == nullptr ? b : b + i, y + i, count - i);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements
constexpr int64_t kFunctionGrain = 2048;

HWY_EXPORT(BinaryRows);
HWY_EXPORT(BinaryRowsBf16);
HWY_EXPORT(UnaryRun);
HWY_EXPORT(UnaryBackwardRun);
HWY_EXPORT(AffineRun);
HWY_EXPORT(SelectRun);

template <class T, class Run>
void binary_walk(const T* a, const T* b, T* y, const BroadcastLayout& layout, Run run) {
  const int64_t count = layout.shape.numel();
  if (count == 0) return;
  const detail::StridedWalk walk(layout.shape, layout.strides_a, layout.strides_b);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    walk.blocks(begin, end, [&](int64_t at_a, int64_t at_b, int64_t at_y, int64_t rows, int64_t length) {
      run(BinaryArgs<T>{a + at_a, b + at_b, y + at_y, walk.a.back(), walk.b.back(), length, walk.row_a(),
                        walk.row_b(), rows});
    });
  });
}

template <class Rows, class T>
void binary_by(Rows rows, Binary op, const T* a, const T* b, T* y, const BroadcastLayout& layout) {
  binary_walk(a, b, y, layout, [&](const BinaryArgs<T>& r) { rows(op, r); });
}

double softplus64(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double value_of(Unary op, double x) {
  switch (op) {
#define MH_UNARY(name, from_y, value, gradient, value64, ...) \
  case Unary::name:                                           \
    return value64;
    MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  }
  return x;
}

double slope_of(Unary op, double s) {
  switch (op) {
#define MH_UNARY(name, from_y, value, gradient, value64, slope64, text) \
  case Unary::name:                                                     \
    return slope64;
    MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  }
  return s;
}

template <class T, class Run>
void select_ranges(const bool* mask, const T* a, const T* b, T* y, int64_t count, Run run) {
  const auto from = [](const T* x, int64_t i) { return x == nullptr ? x : x + i; };
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(mask + begin, from(a, begin), from(b, begin), y + begin, end - begin);
  });
}

}  // namespace

void binary(Binary op, const float* a, const float* b, float* y, const BroadcastLayout& layout) {
  binary_by(HWY_DYNAMIC_DISPATCH(BinaryRows), op, a, b, y, layout);
}
void binary(Binary op, const BFloat16* a, const BFloat16* b, BFloat16* y, const BroadcastLayout& layout) {
  binary_by(HWY_DYNAMIC_DISPATCH(BinaryRowsBf16), op, a, b, y, layout);
}
void binary(Binary op, const double* a, const double* b, double* y, const BroadcastLayout& layout) {
  dispatch_binary(op, [&](auto f) {
    binary_walk(a, b, y, layout, [&](const BinaryArgs<double>& rows) {
      rows.each([&](const BinaryArgs<double>& row) { binary_row_plain(row, f); });
    });
  });
}

bool is_from_result(Unary op) {
  constexpr bool kFromResult[] = {
#define MH_UNARY(name, from_y, ...) from_y,
      MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  };
  return kFromResult[static_cast<size_t>(op)];
}

void unary(Unary op, const float* x, float* y, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(UnaryRun);
  parallel_ranges(count, kFunctionGrain,
                  [&](int64_t begin, int64_t end) { run(op, x + begin, y + begin, end - begin); });
}
void unary(Unary op, const double* x, double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = value_of(op, x[i]);
}

void unary_backward(Unary op, const float* saved, const float* dy, float* dx, int64_t count) {
  const auto run = HWY_DYNAMIC_DISPATCH(UnaryBackwardRun);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(op, saved + begin, dy + begin, dx + begin, end - begin);
  });
}
void unary_backward(Unary op, const double* saved, const double* dy, double* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * slope_of(op, saved[i]);
}

void affine(const float* x, float* y, int64_t count, double factor, double offset) {
  const auto run = HWY_DYNAMIC_DISPATCH(AffineRun);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    run(x + begin, y + begin, end - begin, static_cast<float>(factor), static_cast<float>(offset));
  });
}
void affine(const double* x, double* y, int64_t count, double factor, double offset) {
  for (int64_t i = 0; i < count; ++i) y[i] = factor * x[i] + offset;
}

void select(const bool* mask, const float* a, const float* b, float* y, int64_t count) {
  select_ranges(mask, a, b, y, count, HWY_DYNAMIC_DISPATCH(SelectRun));
}
void select(const bool* mask, const double* a, const double* b, double* y, int64_t count) {
  select_ranges(mask, a, b, y, count, select_plain<double>);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
