// All of these are bound by memory: ranges of some 32 KiB go to the threads.
#include "multihead/kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/blocked_sum-inl.h"
#include "multihead/kernels/lanes-inl.h"
#include "multihead/kernels/math-inl.h"

#ifndef MULTIHEAD_KERNELS_ELEMENTWISE_ONCE
#define MULTIHEAD_KERNELS_ELEMENTWISE_ONCE
namespace multihead::kernels {

// y[i] = op(a[i · step_a], b[i · step_b]).
template <class T>
struct BinaryRunArgs {
  const T* a;
  const T* b;
  T* y;
  int64_t step_a, step_b, count;
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
  }
}

template <class T, class Op>
void binary_run_plain(const BinaryRunArgs<T>& r, Op op) {
  for (int64_t i = 0; i < r.count; ++i) r.y[i] = op(r.a[i * r.step_a], r.b[i * r.step_b]);
}

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

HWY_INLINE Pack Apply(Plus, Pack a, Pack b) { return Add(a, b); }
HWY_INLINE Pack Apply(Minus, Pack a, Pack b) { return Sub(a, b); }
HWY_INLINE Pack Apply(Times, Pack a, Pack b) { return Mul(a, b); }
HWY_INLINE Pack Apply(Over, Pack a, Pack b) { return Div(a, b); }

void BinaryRun(Binary binary_op, const BinaryRunArgs<float>& r) {
  dispatch_binary(binary_op, [&](auto op) HWY_ATTR {
    if (r.step_a == 1 && r.step_b == 1) {
      ForPacks(r.count, [&](int64_t i, auto at)
                            HWY_ATTR { at.Store(Apply(op, at.Load(r.a + i), at.Load(r.b + i)), r.y + i); });
    } else if (r.step_a == 1 && r.step_b == 0) {
      const Pack b = Set(*r.b);
      ForPacks(r.count,
               [&](int64_t i, auto at) HWY_ATTR { at.Store(Apply(op, at.Load(r.a + i), b), r.y + i); });
    } else if (r.step_a == 0 && r.step_b == 1) {
      const Pack a = Set(*r.a);
      ForPacks(r.count,
               [&](int64_t i, auto at) HWY_ATTR { at.Store(Apply(op, a, at.Load(r.b + i)), r.y + i); });
    } else {
      binary_run_plain(r, op);
    }
  });
}

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

template <class F>
HWY_INLINE void Transform(const float* x, float* y, int64_t count, const F& f) {
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { at.Store(f(at.Load(x + i)), y + i); });
}

void UnaryRun(Unary op, const float* x, float* y, int64_t count) {
  switch (op) {
    case Unary::neg:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Neg(v); });
    case Unary::exp:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Map(ExpOp(), v); });
    case Unary::log:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Map(LogOp(), v); });
    case Unary::sqrt:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Sqrt(v); });
    case Unary::tanh:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Map(TanhOp(), v); });
    case Unary::sigmoid:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Map(SigmoidOp(), v); });
    case Unary::square:
      return Transform(x, y, count, [](Pack v) HWY_ATTR { return Mul(v, v); });
  }
}

template <class F>
HWY_INLINE void Combine(const float* saved, const float* dy, float* dx, int64_t count, const F& f) {
  ForPacks(count,
           [&](int64_t i, auto at) HWY_ATTR { at.Store(f(at.Load(saved + i), at.Load(dy + i)), dx + i); });
}

void UnaryBackwardRun(Unary op, const float* saved, const float* dy, float* dx, int64_t count) {
  switch (op) {
    case Unary::neg:
      return Combine(saved, dy, dx, count, [](Pack, Pack d) HWY_ATTR { return Neg(d); });
    case Unary::exp:
      return Combine(saved, dy, dx, count, [](Pack y, Pack d) HWY_ATTR { return Mul(d, y); });
    case Unary::log:
      return Combine(saved, dy, dx, count, [](Pack x, Pack d) HWY_ATTR { return Div(d, x); });
    case Unary::sqrt:
      return Combine(saved, dy, dx, count, [](Pack y, Pack d) HWY_ATTR { return Div(Mul(d, Set(0.5f)), y); });
    case Unary::tanh:
      return Combine(saved, dy, dx, count,
                     [](Pack y, Pack d) HWY_ATTR { return Mul(d, NegMulAdd(y, y, Set(1))); });
    case Unary::sigmoid:
      return Combine(saved, dy, dx, count,
                     [](Pack y, Pack d) HWY_ATTR { return Mul(d, NegMulAdd(y, y, y)); });
    case Unary::square:
      return Combine(saved, dy, dx, count, [](Pack x, Pack d) HWY_ATTR { return Mul(d, Add(x, x)); });
  }
}

void AffineRun(const float* x, float* y, int64_t count, float factor, float offset) {
  const Pack f = Set(factor), o = Set(offset);
  Transform(x, y, count, [&](Pack v) HWY_ATTR { return Add(Mul(v, f), o); });
}

float SumRun(const float* x, int64_t count) {
  Pack total = Set(0);
  ForPacks(count, [&](int64_t i, auto at) HWY_ATTR { total = Add(total, at.Load(x + i)); });
  return Sum(total);
}

// kPacks packs of columns of Σ_n x[n, i]: chains of 8 rows, added up per 64 and then altogether, because the
// error of a chain grows with its length.
template <int kPacks, class Access>
HWY_INLINE void SumStrip(const float* x, float* y, const AxisSum& s, const Access& at) {
  const auto zero = [](Pack(&to)[kPacks]) HWY_ATTR {
    for (Pack& t : to) t = Set(0);
  };
  const auto add = [](Pack(&to)[kPacks], const Pack(&from)[kPacks]) HWY_ATTR {
    for (int j = 0; j < kPacks; ++j) to[j] = Add(to[j], from[j]);
  };
  Pack total[kPacks], block[kPacks], chain[kPacks];
  zero(total), zero(block);
  for (int64_t n = 0; n < s.axis;) {
    zero(chain);
    for (const int64_t stop = HWY_MIN(n + 8, s.axis); n < stop; ++n) {
      for (int j = 0; j < kPacks; ++j) chain[j] = Add(chain[j], at.Load(x + n * s.inner + j * kPack));
    }
    add(block, chain);
    if (n % 64 == 0) add(total, block), zero(block);
  }
  add(total, block);
  for (int j = 0; j < kPacks; ++j) at.Store(total[j], y + j * kPack);
}

// Columns [begin, end): strips of 256 bytes a row, which the prefetcher follows; single lines it does not.
void SumColumns(const float* x, float* y, const AxisSum& s, int64_t begin, int64_t end) {
  for (; begin + 4 * kPack <= end; begin += 4 * kPack) SumStrip<4>(x + begin, y + begin, s, FullAccess());
  ForPacks(end - begin,
           [&](int64_t i, auto at) HWY_ATTR { SumStrip<1>(x + begin + i, y + begin + i, s, at); });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements
constexpr int64_t kFunctionGrain = 2048;
constexpr int64_t kSumParts = 64;  // of the sum of an array

HWY_EXPORT(BinaryRun);
HWY_EXPORT(UnaryRun);
HWY_EXPORT(UnaryBackwardRun);
HWY_EXPORT(AffineRun);
HWY_EXPORT(SumRun);
HWY_EXPORT(SumColumns);

// Two strided operands with neighbouring axes merged where both allow it.
struct Walk {
  Shape shape, a, b;

  Walk(const Shape& sizes, const Shape& strides_a, const Shape& strides_b) {
    for (int i = 0; i < sizes.rank(); ++i) {
      if (sizes[i] == 1) continue;
      const int last = shape.rank() - 1;
      if (last >= 0 && a[last] == strides_a[i] * sizes[i] && b[last] == strides_b[i] * sizes[i]) {
        shape[last] *= sizes[i];
        a[last] = strides_a[i];
        b[last] = strides_b[i];
      } else {
        shape.push_back(sizes[i]);
        a.push_back(strides_a[i]);
        b.push_back(strides_b[i]);
      }
    }
    if (shape.rank() == 0) {
      shape.push_back(1);
      a.push_back(1);
      b.push_back(1);
    }
  }
  int64_t inner() const { return shape.back(); }

  // f(offset of a, offset of b, flat index, length) on pieces of the last axis that cover [begin, end).
  template <class F>
  void pieces(int64_t begin, int64_t end, F&& f) const {
    while (begin < end) {
      int64_t row = begin / inner();
      const int64_t column = begin % inner();
      const int64_t length = std::min(inner() - column, end - begin);
      int64_t offset_a = column * a.back(), offset_b = column * b.back();
      for (int axis = shape.rank() - 2; axis >= 0; --axis) {
        offset_a += row % shape[axis] * a[axis];
        offset_b += row % shape[axis] * b[axis];
        row /= shape[axis];
      }
      f(offset_a, offset_b, begin, length);
      begin += length;
    }
  }
};

template <class T, class Run>
void binary_walk(const T* a, const T* b, T* y, const BroadcastLayout& layout, Run run) {
  const int64_t count = layout.shape.numel();
  if (count == 0) return;
  const Walk walk(layout.shape, layout.strides_a, layout.strides_b);
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    walk.pieces(begin, end, [&](int64_t at_a, int64_t at_b, int64_t at_y, int64_t length) {
      run(BinaryRunArgs<T>{a + at_a, b + at_b, y + at_y, walk.a.back(), walk.b.back(), length});
    });
  });
}

double value_of(Unary op, double x) {
  switch (op) {
    case Unary::neg:
      return -x;
    case Unary::exp:
      return std::exp(x);
    case Unary::log:
      return std::log(x);
    case Unary::sqrt:
      return std::sqrt(x);
    case Unary::tanh:
      return std::tanh(x);
    case Unary::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::square:
      break;
  }
  return x * x;
}

double slope_of(Unary op, double saved) {
  switch (op) {
    case Unary::neg:
      return -1;
    case Unary::exp:
      return saved;
    case Unary::log:
      return 1 / saved;
    case Unary::sqrt:
      return 0.5 / saved;
    case Unary::tanh:
      return 1 - saved * saved;
    case Unary::sigmoid:
      return saved * (1 - saved);
    case Unary::square:
      break;
  }
  return 2 * saved;
}

template <class T, class F>
void copy_walk(const void* from, void* to, const CopyLayout& layout, F&& copy) {
  const Walk walk(layout.shape, layout.strides_from, layout.strides_to);
  parallel_ranges(layout.shape.numel(), kGrain, [&](int64_t begin, int64_t end) {
    walk.pieces(begin, end, [&](int64_t at_from, int64_t at_to, int64_t, int64_t length) {
      copy(static_cast<const T*>(from) + at_from, walk.a.back(), static_cast<T*>(to) + at_to, walk.b.back(),
           length);
    });
  });
}

template <class T>
void strided_copy_of(const void* from, void* to, const CopyLayout& layout) {
  copy_walk<T>(from, to, layout,
               [](const T* source, int64_t step_from, T* target, int64_t step_to, int64_t n) {
                 if (step_from == 1 && step_to == 1) {
                   std::copy(source, source + n, target);
                 } else {
                   for (int64_t i = 0; i < n; ++i) target[i * step_to] = source[i * step_from];
                 }
               });
}

}  // namespace

void binary(Binary op, const float* a, const float* b, float* y, const BroadcastLayout& layout) {
  const auto run = HWY_DYNAMIC_DISPATCH(BinaryRun);
  binary_walk(a, b, y, layout, [&](const BinaryRunArgs<float>& r) { run(op, r); });
}
void binary(Binary op, const double* a, const double* b, double* y, const BroadcastLayout& layout) {
  dispatch_binary(op, [&](auto f) {
    binary_walk(a, b, y, layout, [&](const BinaryRunArgs<double>& r) { binary_run_plain(r, f); });
  });
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

double sum(const float* x, int64_t count) {
  return blocked_sum<kSumParts, 1024, 16>(x, count, HWY_DYNAMIC_DISPATCH(SumRun));
}
double sum(const double* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += x[i];
  return total;
}

void sum_axis(const float* x, float* y, const AxisSum& s) {
  if (s.inner == 1) {
    const auto run = HWY_DYNAMIC_DISPATCH(SumRun);
    parallel_ranges(s.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(s.axis, 1)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) y[i] = run(x + i * s.axis, s.axis);
                    });
    return;
  }
  const auto run = HWY_DYNAMIC_DISPATCH(SumColumns);
  // A task takes a multiple of 64 columns of one outer index.
  constexpr int64_t kStrip = 64;
  const int64_t packs = (s.inner + kStrip - 1) / kStrip;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(kStrip * s.axis, 1));
  parallel_ranges(s.outer * packs, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / packs, first = begin % packs;
      const int64_t last = std::min(packs, first + end - begin);
      run(x + outer * s.axis * s.inner, y + outer * s.inner, s, first * kStrip,
          std::min(last * kStrip, s.inner));
      begin += last - first;
    }
  });
}
void sum_axis(const double* x, double* y, const AxisSum& s) {
  for (int64_t o = 0; o < s.outer; ++o) {
    double* to = y + o * s.inner;
    std::fill(to, to + s.inner, 0.0);
    for (int64_t n = 0; n < s.axis; ++n) {
      for (int64_t i = 0; i < s.inner; ++i) to[i] += x[(o * s.axis + n) * s.inner + i];
    }
  }
}

namespace {
template <class T>
void select_plain(const bool* mask, const T* a, const T* b, T* y, int64_t count) {
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* chosen = mask[i] ? a : b;
      y[i] = chosen == nullptr ? T{0} : chosen[i];
    }
  });
}
}  // namespace

void select(const bool* mask, const float* a, const float* b, float* y, int64_t count) {
  select_plain(mask, a, b, y, count);
}
void select(const bool* mask, const double* a, const double* b, double* y, int64_t count) {
  select_plain(mask, a, b, y, count);
}

void strided_copy(const void* from, void* to, const CopyLayout& layout) {
  if (layout.shape.numel() == 0) return;
  switch (layout.element_bytes) {
    case 1:
      return strided_copy_of<uint8_t>(from, to, layout);
    case 2:
      return strided_copy_of<uint16_t>(from, to, layout);
    case 4:
      return strided_copy_of<uint32_t>(from, to, layout);
    default:
      return strided_copy_of<uint64_t>(from, to, layout);
  }
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
