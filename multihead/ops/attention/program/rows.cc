// Tables whose index is a sum of multiples of query and key, as table[head, query - key + c] and slope[head]:
// a row of scores reads a row of the table. One comparison per tile then stands for a bounds check per
// element, and the index is never computed (table by head and distance, causal, 1024 tokens, 8 heads of 64,
// one core of a Zen 5: 10.1 -> 5.7 ms; 2026-11-21).
#include <algorithm>

#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {
namespace {

Steps sum(const Steps& a, const Steps& b, int64_t sign) {
  return {a.known && b.known, a.query + sign * b.query, a.key + sign * b.key};
}

bool is_fixed(const Steps& s) { return s.known && s.query == 0 && s.key == 0; }

// Steps so large never read neighbours; refusing them keeps the sums far from overflow.
Steps bounded(Steps s) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  s.known = s.known && std::abs(s.query) < kLargest && std::abs(s.key) < kLargest;
  return s;
}

}  // namespace

void ScoreProgram::find_steps() {
  steps_.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    const Instruction& in = code_[i];
    const Steps a = in.a >= 0 ? steps_[static_cast<size_t>(in.a)] : Steps{};
    const Steps b = in.b >= 0 ? steps_[static_cast<size_t>(in.b)] : Steps{};
    Steps& s = steps_[i];
    switch (in.op) {
      case Op::batch:
      case Op::head:
      case Op::const_i:
        s = {true, 0, 0};
        break;
      case Op::query:
      case Op::row:
        s = {true, 1, 0};
        break;
      case Op::key:
        s = {true, 0, 1};
        break;
      case Op::add_i:
        s = sum(a, b, 1);
        break;
      case Op::sub_i:
        s = sum(a, b, -1);
        break;
      case Op::neg_i:
        s = {a.known, -a.query, -a.key};
        break;
      case Op::bound_i:
        s = a;
        break;
      case Op::mul_i: {  // by a constant: the step would depend on the sample or the head
        const bool swapped = in.b >= 0 && code_[static_cast<size_t>(in.a)].op == Op::const_i;
        const Steps& x = swapped ? b : a;
        const auto factor = static_cast<int64_t>(code_[static_cast<size_t>(swapped ? in.a : in.b)].number);
        if (swapped || code_[static_cast<size_t>(in.b)].op == Op::const_i) {
          s = {x.known, x.query * factor, x.key * factor};
        } else {
          s = {is_fixed(a) && is_fixed(b), 0, 0};
        }
        break;
      }
      default:
        break;
    }
    s = bounded(s);
  }
  for (size_t i = 0; i < code_.size(); ++i) has_rows_ = has_rows_ || reads_rows(static_cast<int32_t>(i));
}

bool ScoreProgram::reads_rows(int32_t i) const {
  const Instruction& in = code_[static_cast<size_t>(i)];
  if (in.op != Op::gather_f && in.op != Op::gather_i) return false;
  const Steps& s = steps(in.a);
  return s.known && std::abs(s.query) <= 1;
}

bool ScoreProgram::find_first(const TilePlace& tile, std::vector<int64_t>& first) const {
  if (!has_rows_) return false;
  first.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    const Instruction& in = code_[i];
    const Steps& s = steps_[i];
    if (!s.known) continue;
    const int64_t a = in.a >= 0 ? first[static_cast<size_t>(in.a)] : 0;
    const int64_t b = in.b >= 0 ? first[static_cast<size_t>(in.b)] : 0;
    int64_t& x = first[i];
    switch (in.op) {
      case Op::batch:
        x = tile.batch;
        break;
      case Op::head:
        x = tile.head;
        break;
      case Op::query:
        x = tile.query;
        break;
      case Op::row:
        x = tile.query - tile.offset;
        break;
      case Op::key:
        x = tile.key;
        break;
      case Op::const_i:
        x = static_cast<int64_t>(in.number);
        break;
      case Op::add_i:
        x = a + b;
        break;
      case Op::sub_i:
        x = a - b;
        break;
      case Op::neg_i:
        x = -a;
        break;
      case Op::mul_i:
        x = a * b;
        break;
      case Op::bound_i: {
        const int64_t over_queries = s.query * (tile.queries - 1), over_keys = s.key * (tile.keys - 1);
        const int64_t low = a + std::min<int64_t>(over_queries, 0) + std::min<int64_t>(over_keys, 0);
        const int64_t high = a + std::max<int64_t>(over_queries, 0) + std::max<int64_t>(over_keys, 0);
        const auto size = static_cast<int64_t>(in.number);
        if (low >= 0 ? high >= size : (low < -size || high >= 0)) return false;
        x = low >= 0 ? a : a + size;  // negative indices count from the end
        break;
      }
      default:
        break;
    }
  }
  return true;
}

}  // namespace multihead::program
