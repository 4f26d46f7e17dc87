// The instructions that give indices and conditions.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>

#include "python/src/score_program/program.h"
#include "python/src/score_program/registers.h"

namespace multihead::python {

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

// What existing element i holds, or nothing to complain about.
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

// Negative indices count from the end; returns whether one that exists in the block is outside.
MH_INLINE bool bound(const int32_t* a, int32_t size, const Place& at, int32_t* y) {
  const auto clamped = [&](int i) {
    const int32_t wrapped = a[i] < 0 ? a[i] + size : a[i];
    y[i] = wrapped < 0 ? 0 : (wrapped >= size ? size - 1 : wrapped);
    return static_cast<int32_t>(y[i] != wrapped);
  };
  return any_existing(at, clamped);
}

// Sums, products and shifts of the registers a and b.
MH_INLINE void run_arithmetic(const ScoreProgram& program, int32_t index, const int32_t* a, const int32_t* b,
                              const Place& at, int32_t* y) {
  const bool careful = program.is_checked(index);
  const auto run = [&](auto&& exact, auto&& wrapping) __attribute__((always_inline)) {
    if (careful) {
      if (checked(at, y, exact)) program.note(kWideInteger);
    } else {
      each([&](int i) { y[i] = static_cast<int32_t>(wrapping(i)); });
    }
  };
  const auto u = [](int32_t x) { return static_cast<uint32_t>(x); };
  switch (program.code()[static_cast<size_t>(index)].op) {
    case Op::add_i:
      return run([&](int i) { return int64_t{a[i]} + b[i]; }, [&](int i) { return u(a[i]) + u(b[i]); });
    case Op::sub_i:
      return run([&](int i) { return int64_t{a[i]} - b[i]; }, [&](int i) { return u(a[i]) - u(b[i]); });
    case Op::mul_i:
      return run([&](int i) { return int64_t{a[i]} * b[i]; }, [&](int i) { return u(a[i]) * u(b[i]); });
    case Op::neg_i:
      return run([&](int i) { return -int64_t{a[i]}; }, [&](int i) { return 0 - u(a[i]); });
    case Op::abs_i:
      return run([&](int i) { return std::abs(int64_t{a[i]}); },
                 [&](int i) { return a[i] < 0 ? 0 - u(a[i]) : u(a[i]); });
    case Op::shl_i:
      return run([&](int i) { return shift_left(a[i], b[i]); },
                 [&](int i) { return shift_left(a[i], b[i]); });
    default:
      return;
  }
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

// Comparisons of the registers a and b.
template <class T>
MH_INLINE void run_comparison(const Instruction& in, Registers<T>& r, int32_t* y) {
  const int32_t* a = r.integer(in.a);
  const int32_t* b = r.integer(in.b);
  const T* fa = r.value(in.a);
  const T* fb = r.value(in.b);
  switch (in.op) {
    case Op::eq_i:
      each([&](int i) { y[i] = a[i] == b[i]; });
      break;
    case Op::ne_i:
      each([&](int i) { y[i] = a[i] != b[i]; });
      break;
    case Op::lt_i:
      each([&](int i) { y[i] = a[i] < b[i]; });
      break;
    case Op::le_i:
      each([&](int i) { y[i] = a[i] <= b[i]; });
      break;
    case Op::eq_f:
      each([&](int i) { y[i] = fa[i] == fb[i]; });
      break;
    case Op::ne_f:
      each([&](int i) { y[i] = fa[i] != fb[i]; });
      break;
    case Op::lt_f:
      each([&](int i) { y[i] = fa[i] < fb[i]; });
      break;
    case Op::le_f:
      each([&](int i) { y[i] = fa[i] <= fb[i]; });
      break;
    default:
      break;
  }
}

template <class T>
MH_INLINE void run_integer(const ScoreProgram& program, int32_t index, Registers<T>& r, const Place& at) {
  const Instruction& in = program.code()[static_cast<size_t>(index)];
  int32_t* y = r.integer(index);
  const int32_t* a = in.a >= 0 ? r.integer(in.a) : nullptr;
  const int32_t* b = in.b >= 0 ? r.integer(in.b) : nullptr;
  const int32_t* c = in.c >= 0 ? r.integer(in.c) : nullptr;
  const T* fa = in.a >= 0 ? r.value(in.a) : nullptr;
  const auto number = static_cast<int32_t>(in.number);
  switch (in.op) {
    case Op::batch:
      each([&](int i) { y[i] = at.batch; });
      break;
    case Op::head:
      each([&](int i) { y[i] = at.head; });
      break;
    case Op::query:
      each([&](int i) { y[i] = at.query + i % kQueries; });
      break;
    case Op::row:
      each([&](int i) { y[i] = at.query - static_cast<int32_t>(at.tile.offset) + i % kQueries; });
      break;
    case Op::key:
      each([&](int i) { y[i] = at.key + i / kQueries; });
      break;
    case Op::const_i:
      each([&](int i) { y[i] = number; });
      break;
    case Op::to_i:
      each([&](int i) { y[i] = truncated(fa[i]); });
      // Scores of pairs that are never read may be anything.
      if (!program.depends_on_score(index) && any_existing(at, [&](int i) {
            return static_cast<int32_t>(!(std::fabs(fa[i]) < T(2147483648.0)));
          })) {
        program.note(kWideInteger);
      }
      break;
    case Op::wrap_i:
      run_wrap(static_cast<Wrap>(number), a, y);
      break;
    case Op::add_i:
    case Op::sub_i:
    case Op::mul_i:
    case Op::neg_i:
    case Op::abs_i:
    case Op::shl_i:
      run_arithmetic(program, index, a, b, at, y);
      break;
    case Op::shr_i:
      each([&](int i) { y[i] = shift_right(a[i], b[i]); });
      break;
    case Op::nonzero_i:
      each([&](int i) { y[i] = a[i]; });
      if (any_existing(at, [&](int i) { return static_cast<int32_t>(a[i] == 0); }))
        program.note(kDivisionByZero);
      break;
    case Op::div_i:
      each([&](int i) { y[i] = floor_div(a[i], b[i]); });
      break;
    case Op::mod_i:
      each([&](int i) {
        const auto whole = static_cast<uint32_t>(floor_div(a[i], b[i])) * static_cast<uint32_t>(b[i]);
        y[i] = static_cast<int32_t>(static_cast<uint32_t>(a[i]) - whole);
      });
      break;
    case Op::min_i:
      each([&](int i) { y[i] = b[i] < a[i] ? b[i] : a[i]; });
      break;
    case Op::max_i:
      each([&](int i) { y[i] = b[i] > a[i] ? b[i] : a[i]; });
      break;
    case Op::and_i:
      each([&](int i) { y[i] = a[i] & b[i]; });
      break;
    case Op::or_i:
      each([&](int i) { y[i] = a[i] | b[i]; });
      break;
    case Op::xor_i:
      each([&](int i) { y[i] = a[i] ^ b[i]; });
      break;
    case Op::not_b:
      each([&](int i) { y[i] = a[i] == 0; });
      break;
    case Op::select_i:
      each([&](int i) { y[i] = a[i] != 0 ? b[i] : c[i]; });
      break;
    case Op::bound_i:
      if (bound(a, number, at, y)) program.note(kOutOfRange);
      break;
    case Op::gather_i:
      gather_table<int32_t>(program, in, a, at, y);
      break;
    default:
      run_comparison(in, r, y);
  }
}

}  // namespace multihead::python
