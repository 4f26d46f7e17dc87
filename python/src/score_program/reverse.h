// Gradients in reverse: what each instruction hands on to its operands, and to the tables that learn. The
// rules are PyTorch's at every corner: at a tie max and min halve, clamp hands on nothing; a branch that
// where() did not choose gets zeros, which times infinity are NaN.
#pragma once

#include <cmath>
#include <limits>

#include "python/src/score_program/numbers.h"

namespace multihead::python {

// sums[index of element i] += d[i], key by key; only pairs whose own gradient is not 0 count.
template <class T, class U>
MH_INLINE void scatter_table(const ScoreProgram& program, const Instruction& in, const int32_t* index,
                             const Place& at, const T* d, const T* seed, U* sums) {
  const Steps& s = program.steps(in.a);
  const bool by_rows = at.first != nullptr && s.known && std::abs(s.query) <= 1;
  for (int row = 0; row < at.rows; ++row) {
    const int64_t first =
        by_rows ? at.first[in.a] + s.query * (at.query - at.tile.query) + s.key * (at.key + row - at.tile.key)
                : 0;
    for (int i = 0; i < at.count; ++i) {
      const int n = row * kQueries + i;
      if (seed != nullptr && seed[n] == 0) continue;
      sums[by_rows ? first + s.query * i : index[n]] += static_cast<U>(d[n]);
    }
  }
}

// Derivatives of functions of one number: d(x, y).
template <class T, class D>
MH_INLINE void hand_on(T* da, const T* dy, const T* a, const T* y, D&& d) {
  each([&](int i) { da[i] += dy[i] * d(a[i], y[i]); });
}

template <class T>
MH_INLINE void reverse_unary(Op op, T number, T* da, const T* dy, const T* a, const T* y) {
  switch (op) {
    case Op::copy_f:
      return each([&](int i) { da[i] += dy[i]; });
    case Op::neg_f:
      return each([&](int i) { da[i] -= dy[i]; });
    case Op::abs_f:
      return hand_on(da, dy, a, y, [](T x, T) { return static_cast<T>((x > 0) - (x < 0)); });
    case Op::exp_f:
      return hand_on(da, dy, a, y, [](T, T e) { return e; });
    case Op::exp2_f:
      return hand_on(da, dy, a, y, [](T, T e) { return e * T(0.69314718055994531); });
    case Op::expm1_f:
      return hand_on(da, dy, a, y, [](T, T e) { return e + 1; });
    case Op::tanh_f:
      return hand_on(da, dy, a, y, [](T, T t) { return 1 - t * t; });
    case Op::sigmoid_f:
      return hand_on(da, dy, a, y, [](T, T s) { return (1 - s) * s; });
    case Op::log_f:
      return each([&](int i) { da[i] += dy[i] / a[i]; });
    case Op::log2_f:
      return each([&](int i) { da[i] += dy[i] / (a[i] * T(0.69314718055994531)); });
    case Op::log1p_f:
      return each([&](int i) { da[i] += dy[i] / (a[i] + 1); });
    case Op::sqrt_f:
      return each([&](int i) { da[i] += dy[i] / (2 * y[i]); });
    case Op::rsqrt_f:
      return hand_on(da, dy, a, y, [](T, T s) { return T(-0.5) * (s * s * s); });
    case Op::sin_f:
      return hand_on(da, dy, a, y, [](T x, T) { return std::cos(x); });
    case Op::cos_f:
      return hand_on(da, dy, a, y, [](T x, T) { return -std::sin(x); });
    case Op::tan_f:
      return hand_on(da, dy, a, y, [](T, T t) { return 1 + t * t; });
    case Op::erf_f:
      return hand_on(da, dy, a, y, [](T x, T) { return T(1.1283791670955126) * std::exp(-(x * x)); });
    case Op::pow_f:
      if (number == 0) return;
      return hand_on(da, dy, a, y, [&](T x, T) { return number * power(x, number - 1); });
    default:  // floor, ceil, trunc, round, sign: nothing to hand on
      return;
  }
}

template <class T>
struct Three {
  T *a, *b, *c;
};

// Between plain numbers the borders themselves and NaN get nothing. Between tensors (`shares`) a border gets
// half of what lies on it, and NaN all.
template <class T>
MH_INLINE void reverse_clamp(bool shares, const T* dy, const Three<const T>& x, const Three<T>& d) {
  const T low = -std::numeric_limits<T>::infinity(), high = -low;
  each([&](int i) {
    const T v = x.a[i], b = x.b ? x.b[i] : low, c = x.c ? x.c[i] : high;
    const bool inside = (x.b == nullptr || v > b) && (x.c == nullptr || v < c);
    if (!shares) {
      if (d.a) d.a[i] += inside ? dy[i] : T(0);
      return;
    }
    const bool none = v != v || b != b || c != c, on_low = v == b && b < c, on_high = v == c && b < c;
    const T half = dy[i] / 2;
    if (d.a) d.a[i] += none || inside || (v == b && b == c) ? dy[i] : (on_low || on_high ? half : T(0));
    if (d.b) d.b[i] += none ? T(0) : (v < b && b <= c ? dy[i] : (on_low ? half : T(0)));
    if (d.c) d.c[i] += none ? T(0) : ((v > c && b <= c) || c < b ? dy[i] : (on_high ? half : T(0)));
  });
}

// Functions of two and three numbers; da, db, dc are null where not requested.
template <class T, class U>
MH_INLINE void reverse_number(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at,
                              const T* seed, U* sums) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  const T* y = r.value(index);
  T* dy = r.slope(index);
  const auto value = [&](int32_t i) -> const T* { return i >= 0 ? r.value(i) : nullptr; };
  const auto slope = [&](int32_t i) -> T* { return i >= 0 && program.is_active(i) ? r.slope(i) : nullptr; };
  const T *a = value(in.a), *b = value(in.b), *c = value(in.c);
  T *da = slope(in.a), *db = slope(in.b), *dc = slope(in.c);
  round_to(in.kind, dy);
  switch (in.op) {
    case Op::score:
      break;
    case Op::add_f:
      if (da) each([&](int i) { da[i] += dy[i]; });
      if (db) each([&](int i) { db[i] += dy[i]; });
      break;
    case Op::sub_f:
      if (da) each([&](int i) { da[i] += dy[i]; });
      if (db) each([&](int i) { db[i] -= dy[i]; });
      break;
    case Op::mul_f:
      if (da) each([&](int i) { da[i] += dy[i] * b[i]; });
      if (db) each([&](int i) { db[i] += dy[i] * a[i]; });
      break;
    case Op::div_f:
      if (da) each([&](int i) { da[i] += dy[i] / b[i]; });
      if (db) each([&](int i) { db[i] -= dy[i] * (y[i] / b[i]); });
      break;
    case Op::mod_f:
      if (da) each([&](int i) { da[i] += dy[i]; });
      if (db) each([&](int i) { db[i] -= dy[i] * floor_quotient(a[i], b[i]); });
      break;
    case Op::fmod_f:
      if (da) each([&](int i) { da[i] += dy[i]; });
      if (db) each([&](int i) { db[i] -= dy[i] * std::trunc(a[i] / b[i]); });
      break;
    case Op::power_f:
      if (da) each([&](int i) { da[i] += b[i] == 0 ? T(0) : dy[i] * (b[i] * power(a[i], b[i] - 1)); });
      if (db)
        each([&](int i) { db[i] += ((a[i] == 0) & (b[i] >= 0)) ? T(0) : dy[i] * (y[i] * std::log(a[i])); });
      break;
    case Op::min_f:
      if (da) each([&](int i) { da[i] += a[i] > b[i] ? T(0) : (a[i] == b[i] ? dy[i] / 2 : dy[i]); });
      if (db) each([&](int i) { db[i] += b[i] > a[i] ? T(0) : (a[i] == b[i] ? dy[i] / 2 : dy[i]); });
      break;
    case Op::max_f:
      if (da) each([&](int i) { da[i] += a[i] < b[i] ? T(0) : (a[i] == b[i] ? dy[i] / 2 : dy[i]); });
      if (db) each([&](int i) { db[i] += b[i] < a[i] ? T(0) : (a[i] == b[i] ? dy[i] / 2 : dy[i]); });
      break;
    case Op::clamp_f:
      reverse_clamp(in.number != 0, dy, {a, b, c}, {da, db, dc});
      break;
    case Op::select_f: {
      const int32_t* chosen = r.integer(in.a);
      if (db) each([&](int i) { db[i] += chosen[i] != 0 ? dy[i] : T(0); });
      if (dc) each([&](int i) { dc[i] += chosen[i] != 0 ? T(0) : dy[i]; });
      break;
    }
    case Op::gather_f:
      if (sums) {
        const int64_t begin = program.sums_begin(in.table);
        if (begin >= 0) scatter_table(program, in, r.integer(in.a), at, dy, seed, sums + begin);
      }
      break;
    default:
      if (da) reverse_unary(in.op, static_cast<T>(in.number), da, dy, a, y);
  }
}

}  // namespace multihead::python
