// The instructions that give indices and conditions.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>

#include "multihead/ops/attention/program/program-inl.h"
#include "multihead/ops/attention/program/registers-inl.h"

namespace multihead::program {

// By way of doubles, which vectors can divide: the quotient of 32-bit integers, rounded and cut, is exact.
// Without a branch, which would keep the loop scalar; x / 0 is 0.
MH_INLINE int32_t floor_div(int32_t a, int32_t b) {
  const int32_t none = b == 0, over = (a == std::numeric_limits<int32_t>::min()) & (b == -1);
  const auto cut = static_cast<int32_t>(static_cast<double>(a + over) / static_cast<double>(b + none));
  const auto rest =
      static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(cut) * static_cast<uint32_t>(b));
  const int32_t down = (rest != 0) & ((rest ^ b) < 0);
  return (cut - down) & (none - 1);
}

MH_INLINE int32_t floor_rest(int32_t a, int32_t b) {
  const auto whole = static_cast<uint32_t>(floor_div(a, b)) * static_cast<uint32_t>(b);
  return static_cast<int32_t>(static_cast<uint32_t>(a) - whole);
}

// y[i] = table[at[i]]. Most tables are indexed by the key alone, by the query alone or by their distance:
// then the indices of a row are equal or neighbours, and no element is fetched by itself.
template <class Element, class T>
MH_INLINE void gather(const Element* table, const int32_t* at, T* y) {
  for (int row = 0; row < kKeys; ++row, at += kQueries, y += kQueries) {
    int32_t differ = 0, rise = 0, fall = 0;
    for (int i = 0; i < kQueries; ++i) {
      differ |= at[i] ^ at[0];
      rise |= (at[i] - i) ^ at[0];
      fall |= (at[i] + i) ^ at[0];
    }
    if (differ == 0) {
      const auto element = static_cast<T>(table[at[0]]);
      for (int i = 0; i < kQueries; ++i) y[i] = element;
    } else if (rise == 0) {
      const Element* from = table + at[0];
      for (int i = 0; i < kQueries; ++i) y[i] = static_cast<T>(from[i]);
    } else if (fall == 0) {
      const Element* from = table + at[kQueries - 1];
      for (int i = 0; i < kQueries; ++i) y[i] = static_cast<T>(from[kQueries - 1 - i]);
    } else {
      for (int i = 0; i < kQueries; ++i) y[i] = static_cast<T>(table[at[i]]);
    }
  }
}

// y[i] = table[index of element i], by rows; what does not exist in the block is left alone.
template <class Element, class T>
MH_INLINE void gather_rows(const Element* table, int64_t first, const Steps& s, const Place& at, T* y) {
  table += first + s.query * (at.query - at.tile.query) + s.key * (at.key - at.tile.key);
  for (int row = 0; row < at.rows; ++row, table += s.key, y += kQueries) {
    if (s.query == 1 && at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) y[i] = static_cast<T>(table[i]);
    } else if (s.query == 0) {
      const auto element = static_cast<T>(table[0]);
      for (int i = 0; i < kQueries; ++i) y[i] = element;
    } else {
      for (int i = 0; i < at.count; ++i) y[i] = static_cast<T>(table[i * s.query]);
    }
  }
}

// y[i] = table[the index register's element i], by rows where the tile allows.
template <class Element, class T>
MH_INLINE void gather_table(const ScoreProgram& program, const Instruction& in, const int32_t* index,
                            const Place& at, T* y) {
  const Element* table = program.tables()[static_cast<size_t>(in.table)].template data<Element>();
  if (at.first != nullptr && program.steps(in.a).known && std::abs(program.steps(in.a).query) <= 1) {
    gather_rows(table, at.first[in.a], program.steps(in.a), at, y);
  } else {
    gather(table, index, y);
  }
}

// Whether bad(i) holds for an element that exists in the block.
template <class Bad>
MH_INLINE bool any_existing(const Place& at, Bad&& bad) {
  int32_t found = 0;
  if (at.count == kQueries && at.rows == kKeys) {
    each([&](int i) { found |= bad(i); });
  } else {
    each([&](int i) { found |= (i % kQueries < at.count) & (i / kQueries < at.rows) & bad(i); });
  }
  return found != 0;
}

// y = f(a, b) in 64 bits; returns whether one that exists in the block does not fit into 32.
template <class F>
MH_INLINE bool checked(const Place& at, int32_t* y, F&& f) {
  return any_existing(at, [&](int i) {
    const int64_t exact = f(i);
    y[i] = static_cast<int32_t>(exact);
    return static_cast<int32_t>(y[i] != exact);
  });
}

// PyTorch's shifts of 64-bit integers; a result that leaves 32 bits is far from them in 64, too.
MH_INLINE int64_t shift_left(int32_t a, int32_t b) {
  if (a == 0 || b < 0 || b > 63) return 0;
  return b > 31 ? int64_t{1} << 40 : int64_t{a} * (int64_t{1} << b);
}
MH_INLINE int32_t shift_right(int32_t a, int32_t b) { return a >> (b < 0 || b > 31 ? 31 : b); }

// Truncated; numbers beyond 32 bits become the nearest integer there is.
template <class T>
MH_INLINE int32_t truncated(T x) {
  constexpr T kLow = T(-2147483648.0), kHigh = sizeof(T) == 4 ? T(2147483520.0) : T(2147483647.0);
  return static_cast<int32_t>(x > kLow ? (x < kHigh ? x : kHigh) : kLow);
}

/// The types of wrap_i.
enum Wrap : int32_t { kInt8 = 0, kUint8 = 1, kInt16 = 2 };

// Negative indices count from the end; one that exists in the block and is outside is noted.
MH_INLINE void run_bound(const ScoreProgram& program, const int32_t* a, int32_t size, const Place& at,
                         int32_t* y) {
  const auto clamped = [&](int i) {
    const int32_t wrapped = a[i] < 0 ? a[i] + size : a[i];
    y[i] = wrapped < 0 ? 0 : (wrapped >= size ? size - 1 : wrapped);
    return static_cast<int32_t>(y[i] != wrapped);
  };
  if (any_existing(at, clamped)) program.note(kOutOfRange);
}

MH_INLINE void run_nonzero(const ScoreProgram& program, const int32_t* a, const Place& at, int32_t* y) {
  each([&](int i) { y[i] = a[i]; });
  if (any_existing(at, [&](int i) { return static_cast<int32_t>(a[i] == 0); })) program.note(kDivisionByZero);
}

// Scores of pairs that are never read may be anything; other numbers must fit.
template <class T>
MH_INLINE void run_truncation(const ScoreProgram& program, int32_t index, const T* a, const Place& at,
                              int32_t* y) {
  each([&](int i) { y[i] = truncated(a[i]); });
  if (program.depends_on_score(index)) return;
  const auto is_wide = [&](int i) { return static_cast<int32_t>(!(std::fabs(a[i]) < T(2147483648.0))); };
  if (any_existing(at, is_wide)) program.note(kWideInteger);
}

MH_INLINE void run_wrap(Wrap type, const int32_t* a, int32_t* y) {
  switch (type) {
    case kInt8:
      each([&](int i) { y[i] = static_cast<int8_t>(a[i]); });
      break;
    case kUint8:
      each([&](int i) { y[i] = static_cast<uint8_t>(a[i]); });
      break;
    case kInt16:
      each([&](int i) { y[i] = static_cast<int16_t>(a[i]); });
      break;
  }
}

// y = f(i) in 64 bits where a result may leave 32, which is noted; else by the cheaper g(i).
template <class F, class G>
MH_INLINE void run_exact(const ScoreProgram& program, int32_t index, const Place& at, int32_t* y, F&& exact,
                         G&& wrapping) {
  if (!program.is_checked(index)) return each([&](int i) { y[i] = static_cast<int32_t>(wrapping(i)); });
  if (checked(at, y, exact)) program.note(kWideInteger);
}

template <class T>
MH_INLINE void run_integer(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  int32_t* y = r.integer(index);
  const int32_t* a = in.a >= 0 ? r.integer(in.a) : nullptr;
  const int32_t* b = in.b >= 0 ? r.integer(in.b) : nullptr;
  const int32_t* c = in.c >= 0 ? r.integer(in.c) : nullptr;
  const T* fa = in.a >= 0 ? r.value(in.a) : nullptr;
  const T* fb = in.b >= 0 ? r.value(in.b) : nullptr;
  const auto number = static_cast<int32_t>(in.number);
  const auto u = [](int32_t x) { return static_cast<uint32_t>(x); };
#define MH_EACH(value) each([&](int i) { y[i] = (value); })
#define MH_EXACT(exact, wrapping) \
  run_exact(                      \
      program, index, at, y, [&](int i) { return (exact); }, [&](int i) { return (wrapping); })
#define MH_INTEGER(name, operands, code, ...) \
  case Op::name:                              \
    code;                                     \
    break;
#define MH_NUMBER(...)
  switch (in.op) {
#include "multihead/ops/attention/program/operations.inc"
    default:
      break;
  }
#undef MH_EXACT
#undef MH_EACH
}

}  // namespace multihead::program
