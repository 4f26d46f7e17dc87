// Interval arithmetic: which masks are empty or full in a block, and which integers may leave 32 bits.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {
namespace {

struct Interval {
  int64_t low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
  bool is_single() const { return low == high; }
};
constexpr Interval kUnknown = {};
constexpr Interval kEither = {0, 1};

Interval from_flags(bool always, bool never) {
  return always ? Interval{1, 1} : never ? Interval{0, 0} : kEither;
}

Interval multiplied(Interval a, Interval b) {
  const int64_t p[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return {*std::min_element(p, p + 4), *std::max_element(p, p + 4)};
}

// Where a program runs.
struct Box {
  Interval batch, head, query, row, key;
  int64_t longest;  // part of a table that is looked through
};

// The range of a table's elements at indices in `at`; at most box.longest of them are looked through.
Interval table_range(const ScoreProgram& program, const Instruction& in, Interval at, const Box& box) {
  const Tensor& table = program.tables()[static_cast<size_t>(in.table)];
  at = {std::max<int64_t>(at.low, 0), std::min(at.high, table.numel() - 1)};
  if (at.high < at.low || at.high - at.low > box.longest) return kUnknown;
  const int32_t* begin = table.data<int32_t>() + at.low;
  const auto [low, high] = std::minmax_element(begin, begin + (at.high - at.low + 1));
  return {*low, *high};
}

// a | b and a ^ b have no bit above the highest of both.
Interval either_bits(Interval a, Interval b) {
  if (a.low < 0 || b.low < 0) return kUnknown;
  return {0, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(a.high, b.high)) + 1)) - 1};
}

Interval wrapped(Interval a, int64_t type) {
  const Interval all = type == 0   ? Interval{-128, 127}
                       : type == 1 ? Interval{0, 255}
                                   : Interval{-32768, 32767};
  return a.low >= all.low && a.high <= all.high ? a : all;
}

bool is_boolean(Interval a) { return a.low >= 0 && a.high <= 1; }
bool are_same(Interval a, Interval b) { return a.is_single() && b.is_single() && a.low == b.low; }
bool are_apart(Interval a, Interval b) { return a.high < b.low || b.high < a.low; }

Interval common_bits(Interval a, Interval b) {
  if (is_boolean(a) && is_boolean(b)) return {a.low & b.low, a.high & b.high};
  if (a.low >= 0 && b.low >= 0) return {0, std::min(a.high, b.high)};
  return a.low >= 0 ? Interval{0, a.high} : b.low >= 0 ? Interval{0, b.high} : kUnknown;
}

Interval shifted_left(Interval a, Interval b) {
  if (b.low < 0 || b.high > 31) return {std::min<int64_t>(2 * a.low, 0), int64_t{1} << 40};
  return multiplied(a, {int64_t{1} << b.low, int64_t{1} << b.high});
}

Interval absolute(Interval a) {
  if (a.low >= 0) return a;
  return a.high <= 0 ? Interval{-a.high, -a.low} : Interval{0, std::max(-a.low, a.high)};
}

Interval divided(Interval a, Interval b) {
  const int64_t most = std::max(std::abs(a.low), std::abs(a.high));
  if (!b.is_single() || b.low <= 0) return {-most, most};
  const auto divide = [&](int64_t x) { return x >= 0 ? x / b.low : -((-x + b.low - 1) / b.low); };
  return {divide(a.low), divide(a.high)};
}

Interval remainder(Interval a, Interval b) {
  if (!b.is_single() || b.low <= 0) return {std::min<int64_t>(b.low, 0), std::max<int64_t>(b.high, 0)};
  return a.low >= 0 && a.high < b.low ? a : Interval{0, b.low - 1};
}

Interval selected(Interval condition, Interval a, Interval b) {
  if (condition.is_single()) return condition.low != 0 ? a : b;
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

Interval bounded(Interval a, int64_t size) {
  if (a.low >= 0) return {std::min(a.low, size - 1), std::min(a.high, size - 1)};
  return {0, size - 1};
}

Interval evaluate(const ScoreProgram& program, const Instruction& in, const std::vector<Interval>& r,
                  const Box& box) {
  const Interval a = in.a >= 0 ? r[static_cast<size_t>(in.a)] : kUnknown;
  const Interval b = in.b >= 0 ? r[static_cast<size_t>(in.b)] : kUnknown;
  const Interval c = in.c >= 0 ? r[static_cast<size_t>(in.c)] : kUnknown;
  const auto number = static_cast<int64_t>(in.number);
#define MH_INTEGER(name, operands, code, ...) \
  case Op::name:                              \
    return __VA_ARGS__;
#define MH_NUMBER(...)
  switch (in.op) {
#include "multihead/ops/attention/program/operations.inc"
    default:
      return kUnknown;
  }
}

// Whether an index may lie outside its table, or a divisor be 0.
bool fails(const Instruction& in, const std::vector<Interval>& ranges) {
  if (in.op != Op::bound_i && in.op != Op::nonzero_i) return false;
  const Interval a = ranges[static_cast<size_t>(in.a)];
  if (in.op == Op::nonzero_i) return a.low <= 0 && a.high >= 0;
  return a.low < -in.number || a.high >= in.number;
}

// The range of every integer; visit(i, its range before 32 bits are taken for granted).
template <class Visit>
void evaluate_all(const ScoreProgram& program, const Box& box, std::vector<Interval>& ranges, Visit&& visit) {
  const auto& code = program.code();
  ranges.resize(code.size());
  for (size_t i = 0; i < code.size(); ++i) {
    ranges[i] = is_integer(code[i].op) ? evaluate(program, code[i], ranges, box) : kUnknown;
    const bool leaves = ranges[i].low < kUnknown.low || ranges[i].high > kUnknown.high;
    visit(i, leaves);
    if (leaves) ranges[i] = kUnknown;
  }
}

}  // namespace

kernels::BlockClass ScoreProgram::classify(const kernels::KeepTile& t, int64_t offset) const {
  thread_local PerThread<std::vector<Interval>> kept;
  std::vector<Interval>& ranges = *kept;
  const Box box{{t.batch, t.batch},
                {t.head, t.head},
                {t.query_begin + offset, t.query_begin + offset + t.query_count - 1},
                {t.query_begin, t.query_begin + t.query_count - 1},
                {t.key_begin, t.key_begin + t.key_count - 1},
                1024};
  bool may_fail = false;  // then the pairs are looked at, which finds out
  evaluate_all(*this, box, ranges,
               [&](size_t i, bool leaves) { may_fail = may_fail || leaves || fails(code_[i], ranges); });
  if (may_fail) return kernels::BlockClass::partial;
  const Interval result = ranges.back();
  if (result.low == 0 && result.high == 0) return kernels::BlockClass::empty;
  return result.low > 0 || result.high < 0 ? kernels::BlockClass::full : kernels::BlockClass::partial;
}

void ScoreProgram::find_checked() {
  constexpr int64_t kMost = int64_t{1} << 30;  // lengths and batches of calls with functions are below
  const Interval index{0, kMost - 1}, position{-kMost, kMost - 1};
  std::vector<Interval> ranges;
  checked_.assign(code_.size(), 0);
  evaluate_all(*this, {index, index, position, index, index, std::numeric_limits<int64_t>::max()}, ranges,
               [&](size_t i, bool leaves) { checked_[i] = leaves; });
}

}  // namespace multihead::program
