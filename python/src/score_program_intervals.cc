// Interval arithmetic over a block: which masks are empty or full there.
#include <algorithm>
#include <limits>

#include "python/src/score_program.h"

namespace multihead::python {
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

Interval multiply(Interval a, Interval b) {
  const int64_t p[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return {*std::min_element(p, p + 4), *std::max_element(p, p + 4)};
}

// The range of a table's elements at indices in `at`; wide ranges are not looked through.
Interval table_range(const Tensor& table, Interval at) {
  constexpr int64_t kLongest = 1024;
  if (at.low < 0 || at.high >= table.numel() || at.high - at.low > kLongest) return kUnknown;
  const int32_t* begin = table.data<int32_t>() + at.low;
  const auto [low, high] = std::minmax_element(begin, begin + (at.high - at.low + 1));
  return {*low, *high};
}

bool boolean(Interval a) { return a.low >= 0 && a.high <= 1; }

Interval evaluate(const ScoreProgram& program, const Instruction& in, const std::vector<Interval>& r,
                  const kernels::KeepTile& t) {
  const Interval a = in.a >= 0 ? r[static_cast<size_t>(in.a)] : kUnknown;
  const Interval b = in.b >= 0 ? r[static_cast<size_t>(in.b)] : kUnknown;
  const Interval c = in.c >= 0 ? r[static_cast<size_t>(in.c)] : kUnknown;
  const auto number = static_cast<int64_t>(in.number);
  switch (in.op) {
    case Op::batch:
      return {t.batch, t.batch};
    case Op::head:
      return {t.head, t.head};
    case Op::query:
      return {t.query_begin, t.query_begin + t.query_count - 1};
    case Op::key:
      return {t.key_begin, t.key_begin + t.key_count - 1};
    case Op::const_i:
      return {number, number};
    case Op::add_i:
      return {a.low + b.low, a.high + b.high};
    case Op::sub_i:
      return {a.low - b.high, a.high - b.low};
    case Op::mul_i:
      return multiply(a, b);
    case Op::neg_i:
      return {-a.high, -a.low};
    case Op::abs_i:
      return a.low >= 0 ? a : a.high <= 0 ? Interval{-a.high, -a.low} : Interval{0, std::max(-a.low, a.high)};
    case Op::min_i:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Op::max_i:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Op::div_i: {
      if (!b.is_single() || b.low <= 0) return kUnknown;
      const auto divide = [&](int64_t x) { return x >= 0 ? x / b.low : -((-x + b.low - 1) / b.low); };
      return {divide(a.low), divide(a.high)};
    }
    case Op::mod_i:
      if (!b.is_single() || b.low <= 0) return kUnknown;
      return a.low >= 0 && a.high < b.low ? a : Interval{0, b.low - 1};
    case Op::and_i:
      return boolean(a) && boolean(b) ? Interval{a.low & b.low, a.high & b.high} : kUnknown;
    case Op::or_i:
      return boolean(a) && boolean(b) ? Interval{a.low | b.low, a.high | b.high} : kUnknown;
    case Op::xor_i:
      return a.is_single() && b.is_single() && boolean(a) && boolean(b)
                 ? Interval{a.low ^ b.low, a.low ^ b.low}
                 : kEither;
    case Op::not_b:
      return from_flags(a.low == 0 && a.high == 0, a.low > 0 || a.high < 0);
    case Op::eq_i:
      return from_flags(a.is_single() && b.is_single() && a.low == b.low, a.high < b.low || b.high < a.low);
    case Op::ne_i:
      return from_flags(a.high < b.low || b.high < a.low, a.is_single() && b.is_single() && a.low == b.low);
    case Op::lt_i:
      return from_flags(a.high < b.low, a.low >= b.high);
    case Op::le_i:
      return from_flags(a.high <= b.low, a.low > b.high);
    case Op::eq_f:
    case Op::ne_f:
    case Op::lt_f:
    case Op::le_f:
      return kEither;
    case Op::select_i:
      if (a.is_single()) return a.low != 0 ? b : c;
      return {std::min(b.low, c.low), std::max(b.high, c.high)};
    case Op::bound_i: {
      if (a.low >= 0) return {std::min(a.low, number - 1), std::min(a.high, number - 1)};
      return {0, number - 1};
    }
    case Op::gather_i:
      return table_range(program.tables()[static_cast<size_t>(in.table)], a);
    default:
      return kUnknown;
  }
}

}  // namespace

kernels::BlockClass ScoreProgram::classify(const kernels::KeepTile& tile) const {
  thread_local std::vector<Interval> ranges;
  ranges.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    ranges[i] = is_integer(code_[i].op) ? evaluate(*this, code_[i], ranges, tile) : kUnknown;
    // Indices are 32 bits wide: what may leave them is unknown.
    if (ranges[i].low < kUnknown.low || ranges[i].high > kUnknown.high) ranges[i] = kUnknown;
  }
  const Interval result = ranges.back();
  if (result.low == 0 && result.high == 0) return kernels::BlockClass::empty;
  return result.low > 0 || result.high < 0 ? kernels::BlockClass::full : kernels::BlockClass::partial;
}

}  // namespace multihead::python
