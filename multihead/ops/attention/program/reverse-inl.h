// Gradients in reverse: what each instruction hands on to its operands, and to the tables that learn. The
// rules are PyTorch's at every corner: at a tie max and min halve, clamp hands on nothing; a branch that
// where() did not choose gets zeros, which times infinity are NaN.
#pragma once

#include <cmath>
#include <limits>

#include "multihead/ops/attention/program/numbers-inl.h"

namespace multihead::program {

// sums[index of element i] += d[i], key by key; only pairs whose own gradient is not 0 count.
template <class T, class U>
MH_INLINE void scatter(const ScoreProgram& program, const Instruction& in, const int32_t* index,
                       const Place& at, const T* d, const T* seed, U* sums) {
  const int64_t begin = program.sums_begin(in.table);
  if (sums == nullptr || begin < 0) return;
  sums += begin;
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

// Adds to the gradients of the operands, to the tables' in `sums`; da, db, dc are null where not requested.
template <class T, class U>
MH_INLINE void reverse_number(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at,
                              const T* seed, U* sums) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  const T* y = r.value(index);
  T* dy = r.slope(index);
  const auto value = [&](int32_t i) -> const T* { return i >= 0 ? r.value(i) : nullptr; };
  const auto slope = [&](int32_t i) -> T* { return i >= 0 && program.is_active(i) ? r.slope(i) : nullptr; };
  const T *a = value(in.a), *b = value(in.b), *c = value(in.c);
  const int32_t* ia = in.a >= 0 ? r.integer(in.a) : nullptr;
  T *da = slope(in.a), *db = slope(in.b), *dc = slope(in.c);
  const auto number = static_cast<T>(in.number);
  round_to(in.kind, dy);
#define MH_D(x, gradient) \
  if (d##x) each([&](int i) { d##x[i] += (gradient); })
#define MH_NUMBER(name, operands, code, ...) \
  case Op::name:                             \
    __VA_ARGS__;                             \
    break;
#define MH_INTEGER(...)
  switch (in.op) {
#include "multihead/ops/attention/program/operations.inc"
    default:
      break;
  }
#undef MH_D
}

}  // namespace multihead::program
