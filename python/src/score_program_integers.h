// The instructions that give indices and conditions.
#pragma once

#include "python/src/score_program.h"
#include "python/src/score_program_registers.h"

namespace multihead::python {

MH_INLINE int32_t floor_div(int32_t a, int32_t b) {
  if (b == 0) return 0;
  const int32_t q = a / b;
  return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
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
    case Op::key:
      each([&](int i) { y[i] = at.key + i / kQueries; });
      break;
    case Op::const_i:
      each([&](int i) { y[i] = number; });
      break;
    case Op::to_i:
      each([&](int i) { y[i] = static_cast<int32_t>(fa[i]); });
      break;
    case Op::add_i:
      each([&](int i) { y[i] = a[i] + b[i]; });
      break;
    case Op::sub_i:
      each([&](int i) { y[i] = a[i] - b[i]; });
      break;
    case Op::mul_i:
      each([&](int i) { y[i] = a[i] * b[i]; });
      break;
    case Op::div_i:
      each([&](int i) { y[i] = floor_div(a[i], b[i]); });
      break;
    case Op::mod_i:
      each([&](int i) { y[i] = a[i] - floor_div(a[i], b[i]) * b[i]; });
      break;
    case Op::min_i:
      each([&](int i) { y[i] = b[i] < a[i] ? b[i] : a[i]; });
      break;
    case Op::max_i:
      each([&](int i) { y[i] = b[i] > a[i] ? b[i] : a[i]; });
      break;
    case Op::abs_i:
      each([&](int i) { y[i] = a[i] < 0 ? -a[i] : a[i]; });
      break;
    case Op::neg_i:
      each([&](int i) { y[i] = -a[i]; });
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
    case Op::select_i:
      each([&](int i) { y[i] = a[i] != 0 ? b[i] : c[i]; });
      break;
    case Op::bound_i: {
      int32_t bad = 0;
      each([&](int i) {
        const int32_t wrapped = a[i] < 0 ? a[i] + number : a[i];
        y[i] = wrapped < 0 ? 0 : (wrapped >= number ? number - 1 : wrapped);
        bad |= (i % kQueries < at.count) & (i / kQueries < at.rows) & (y[i] != wrapped);
      });
      if (bad != 0) program.note_out_of_range();
      break;
    }
    case Op::gather_i: {
      const auto* table = program.tables()[static_cast<size_t>(in.table)].template data<int32_t>();
      each([&](int i) { y[i] = table[a[i]]; });
      break;
    }
    default:
      break;
  }
}

}  // namespace multihead::python
