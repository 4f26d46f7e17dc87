// Adam moves 28 bytes per parameter and is bound by memory; the bias corrections are folded into two factors.
#include "multihead/kernels/elementwise/optimizer.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/reduce/blocked_sum-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"

#ifndef MULTIHEAD_KERNELS_OPTIMIZER_ONCE
#define MULTIHEAD_KERNELS_OPTIMIZER_ONCE
namespace multihead::kernels {

// param = keep · param - rate · m / (√v · root + eps), g = grad_scale · grad + decay · param.
template <class T>
struct AdamFactors {
  T keep, decay, grad_scale;
  T beta1, beta2, rest1, rest2;
  T rate, root, eps;

  explicit AdamFactors(const AdamArgs& a) {
    const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
    const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
    keep = static_cast<T>(a.decoupled ? 1 - a.lr * a.weight_decay : 1.0);
    decay = static_cast<T>(a.decoupled ? 0.0 : a.weight_decay);
    grad_scale = static_cast<T>(a.grad_scale);
    beta1 = static_cast<T>(a.beta1);
    beta2 = static_cast<T>(a.beta2);
    rest1 = static_cast<T>(1 - a.beta1);
    rest2 = static_cast<T>(1 - a.beta2);
    eps = static_cast<T>(a.eps);
    rate = static_cast<T>(a.eps_hat ? a.lr * std::sqrt(correction2) / correction1 : a.lr / correction1);
    root = static_cast<T>(a.eps_hat ? 1.0 : 1 / std::sqrt(correction2));
  }
};

template <class T>
struct SgdFactors {
  T lr, momentum, decay, grad_scale;
  bool nesterov, first;

  explicit SgdFactors(const SgdArgs& a)
      : lr(static_cast<T>(a.lr)),
        momentum(static_cast<T>(a.momentum)),
        decay(static_cast<T>(a.weight_decay)),
        grad_scale(static_cast<T>(a.grad_scale)),
        nesterov(a.nesterov),
        first(a.first) {}
};

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Moments decay towards zero where gradients stay away, as in the embeddings of rare tokens, and would end as
// denormal numbers: .9 of 4 units of the last place is 4 units again. On Intel a step of such parameters then
// takes 10 to 19 times as long for good (Sapphire Rapids, November 2026; from step 730 on with beta1 = .9).
inline constexpr float kLeastMoment = 0x1p-100f;

struct MomentOp {
  HWY_INLINE FloatVec operator()(FloatVec m) const {
    return hn::IfThenZeroElse(hn::Lt(hn::Abs(m), hn::Set(Floats(), kLeastMoment)), m);
  }
};
// The second moment ends after the first: alone, it would be what a tiny gradient is divided by.
struct SecondMomentOp {
  HWY_INLINE FloatVec operator()(FloatVec v, FloatVec m) const {
    const auto ends = hn::And(hn::Eq(m, hn::Zero(Floats())), hn::Lt(v, hn::Set(Floats(), kLeastMoment)));
    return hn::IfThenZeroElse(ends, v);
  }
};

void AdamRun(const AdamState<float>& s, const AdamFactors<float>& f) {
  const Pack keep = Set(f.keep), decay = Set(f.decay), grad_scale = Set(f.grad_scale);
  const Pack beta1 = Set(f.beta1), beta2 = Set(f.beta2), rest1 = Set(f.rest1), rest2 = Set(f.rest2);
  const Pack rate = Set(f.rate), root = Set(f.root), eps = Set(f.eps);
  ForPacks(s.count, [&](int64_t i, auto at) HWY_ATTR {
    const Pack param = at.Load(s.param + i);
    const Pack g = MulAdd(at.Load(s.grad + i), grad_scale, Mul(decay, param));
    const Pack m = Map(MomentOp(), MulAdd(beta1, at.Load(s.m + i), Mul(rest1, g)));
    const Pack v = Map(SecondMomentOp(), MulAdd(beta2, at.Load(s.v + i), Mul(rest2, Mul(g, g))), m);
    const Pack step = Div(Mul(rate, m), MulAdd(Sqrt(v), root, eps));
    at.Store(m, s.m + i);
    at.Store(v, s.v + i);
    at.Store(Sub(Mul(keep, param), step), s.param + i);
  });
}

void SgdRun(const SgdState<float>& s, const SgdFactors<float>& f) {
  const Pack lr = Set(f.lr), momentum = Set(f.momentum), decay = Set(f.decay);
  const Pack grad_scale = Set(f.grad_scale);
  ForPacks(s.count, [&](int64_t i, auto at) HWY_ATTR {
    const Pack param = at.Load(s.param + i);
    const Pack g = MulAdd(at.Load(s.grad + i), grad_scale, Mul(decay, param));
    Pack move = g;
    if (s.buffer != nullptr) {
      const Pack buffer = f.first ? g : Map(MomentOp(), MulAdd(momentum, at.Load(s.buffer + i), g));
      at.Store(buffer, s.buffer + i);
      move = f.nesterov ? MulAdd(momentum, buffer, g) : buffer;
    }
    at.Store(NegMulAdd(lr, move, param), s.param + i);
  });
}

// Eight virtual f64 lanes; products of two floats are exact in f64.
double SumOfSquares(const float* x, int64_t count) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> half;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::CappedTag<double, 8>()));
  constexpr int64_t kVectors = 8 / kLanes;
  alignas(64) double lane[8] = {};
  hn::Vec<decltype(d)> total[kVectors];
#pragma GCC unroll 8
  for (int64_t v = 0; v < kVectors; ++v) total[v] = hn::Zero(d);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(half, x + i + v * kLanes));
      total[v] = hn::MulAdd(wide, wide, total[v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(total[v], d, lane + v * kLanes);
  for (; i < count; ++i) lane[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void SumOfSquaresRuns(const float* x, int64_t count, int64_t runs, double* sums) {
  for (; runs > 0; --runs, x += count) *sums++ = SumOfSquares(x, count);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 4096;
constexpr int64_t kSumParts = 256;

HWY_EXPORT(AdamRun);
HWY_EXPORT(SgdRun);
HWY_EXPORT(SumOfSquaresRuns);

}  // namespace

void adam_step(const AdamState<float>& s, const AdamArgs& args) {
  const auto run = HWY_DYNAMIC_DISPATCH(AdamRun);
  const AdamFactors<float> factors(args);
  parallel_ranges(s.count, kGrain, [&](int64_t begin, int64_t end) {
    run({s.param + begin, s.grad + begin, s.m + begin, s.v + begin, end - begin}, factors);
  });
}

void adam_step(const AdamState<double>& s, const AdamArgs& args) {
  const AdamFactors<double> f(args);
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = f.grad_scale * s.grad[i] + f.decay * s.param[i];
    s.m[i] = f.beta1 * s.m[i] + f.rest1 * g;
    s.v[i] = f.beta2 * s.v[i] + f.rest2 * g * g;
    s.param[i] = f.keep * s.param[i] - f.rate * s.m[i] / (std::sqrt(s.v[i]) * f.root + f.eps);
  }
}

void sgd_step(const SgdState<float>& s, const SgdArgs& args) {
  const auto run = HWY_DYNAMIC_DISPATCH(SgdRun);
  const SgdFactors<float> factors(args);
  parallel_ranges(s.count, kGrain, [&](int64_t begin, int64_t end) {
    float* buffer = s.buffer == nullptr ? nullptr : s.buffer + begin;
    run({s.param + begin, s.grad + begin, buffer, end - begin}, factors);
  });
}

void sgd_step(const SgdState<double>& s, const SgdArgs& args) {
  const SgdFactors<double> f(args);
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = f.grad_scale * s.grad[i] + f.decay * s.param[i];
    double move = g;
    if (s.buffer != nullptr) {
      s.buffer[i] = f.first ? g : f.momentum * s.buffer[i] + g;
      move = f.nesterov ? g + f.momentum * s.buffer[i] : s.buffer[i];
    }
    s.param[i] -= f.lr * move;
  }
}

double sum_of_squares(const float* x, int64_t count) {
  return blocked_sum<double, kSumParts, 4096, 8>(x, count, HWY_DYNAMIC_DISPATCH(SumOfSquaresRuns));
}

double sum_of_squares(const double* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += x[i] * x[i];
  return total;
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
