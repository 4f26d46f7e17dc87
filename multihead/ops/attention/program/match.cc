#include "multihead/ops/attention/program/match-inl.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace multihead::program {
namespace {

class Matcher {
 public:
  explicit Matcher(const ScoreProgram& program) : program_(program) {}

  const Instruction& at(int32_t i) const { return program_.code()[static_cast<size_t>(i)]; }
  int32_t result() const { return static_cast<int32_t>(program_.code().size()) - 1; }
  bool is(int32_t i, Op op) const { return i >= 0 && at(i).op == op; }
  bool is(int32_t i, Op op, Op a, Op b) const { return is(i, op) && is(at(i).a, a) && is(at(i).b, b); }
  const Tensor& table(int32_t i) const { return program_.tables()[static_cast<size_t>(at(i).table)]; }

 private:
  const ScoreProgram& program_;
};

// query - key < or <= a constant: how many keys before the query are seen.
std::optional<int64_t> match_reach(const Matcher& m, int32_t i, Op query) {
  const bool strict = m.is(i, Op::lt_i);
  if (!strict && !m.is(i, Op::le_i)) return {};
  const Instruction& in = m.at(i);
  if (!m.is(in.a, Op::sub_i, query, Op::key) || !m.is(in.b, Op::const_i)) return {};
  const int64_t reach = static_cast<int64_t>(m.at(in.b).number) - (strict ? 1 : 0);
  return reach >= 0 ? std::optional(reach) : std::nullopt;
}

// Whether a register holds nothing but 0 and 1.
bool is_condition(const Matcher& m, int32_t i) {
  switch (m.at(i).op) {
    case Op::not_b:
    case Op::eq_i:
    case Op::ne_i:
    case Op::lt_i:
    case Op::le_i:
    case Op::eq_f:
    case Op::ne_f:
    case Op::lt_f:
    case Op::le_f:
      return true;
    case Op::and_i:
    case Op::or_i:
    case Op::xor_i:
      return is_condition(m, m.at(i).a) && is_condition(m, m.at(i).b);
    default:
      return false;
  }
}

bool match_band(const Matcher& m, int32_t i, Op query, const Diagonal& diagonal, Mask& mask) {
  if (m.is(i, Op::le_i, Op::key, query)) {
    mask &= causal(diagonal);
  } else if (const auto reach = match_reach(m, i, query)) {
    mask &= window(*reach, -1, diagonal);
  } else {
    return false;
  }
  return true;
}

void match_mask_at(const Matcher& m, int32_t i, const Diagonal& diagonal, MatchedMask& matched) {
  if (match_band(m, i, Op::query, diagonal, matched.mask)) return;
  if (match_band(m, i, Op::row, Align::start, matched.mask)) return;
  if (m.is(i, Op::and_i) && is_condition(m, i)) {
    match_mask_at(m, m.at(i).a, diagonal, matched);
    match_mask_at(m, m.at(i).b, diagonal, matched);
  } else {
    matched.rest.push_back(i);
  }
}

// A number per head: a constant or table[head].
std::optional<std::vector<double>> match_per_head(const Matcher& m, int32_t i, int64_t heads) {
  if (m.is(i, Op::const_f)) return std::vector<double>(static_cast<size_t>(heads), m.at(i).number);
  if (!m.is(i, Op::gather_f) || !m.is(m.at(i).a, Op::bound_i) || !m.is(m.at(m.at(i).a).a, Op::head))
    return {};
  const Tensor& table = m.table(i);
  if (table.numel() < heads) return {};  // the program reports the index that does not exist
  std::vector<double> values =
      table.dtype() == Dtype::f64 ? table.to_vector<double>() : table.to(Dtype::f64).to_vector<double>();
  values.resize(static_cast<size_t>(heads));
  return values;
}

// factor[head] · (query - key), or of its absolute value.
struct Distance {
  std::vector<double> factors;
  bool absolute = false;
};

std::optional<Distance> match_distance(const Matcher& m, int32_t i, int64_t heads) {
  if (m.is(i, Op::to_f)) {
    int32_t from = m.at(i).a;
    const bool absolute = m.is(from, Op::abs_i);
    if (absolute) from = m.at(from).a;
    const bool forward = m.is(from, Op::sub_i, Op::row, Op::key);
    if (!forward && !m.is(from, Op::sub_i, Op::key, Op::row)) return {};
    return Distance{std::vector<double>(static_cast<size_t>(heads), forward || absolute ? 1.0 : -1.0),
                    absolute};
  }
  if (m.is(i, Op::neg_f)) {
    auto inner = match_distance(m, m.at(i).a, heads);
    if (inner) {
      for (double& x : inner->factors) x = -x;
    }
    return inner;
  }
  if (!m.is(i, Op::mul_f)) return {};
  for (const bool swapped : {false, true}) {
    const int32_t number = swapped ? m.at(i).b : m.at(i).a, rest = swapped ? m.at(i).a : m.at(i).b;
    const auto factors = match_per_head(m, number, heads);
    auto inner = factors ? match_distance(m, rest, heads) : std::nullopt;
    if (!inner) continue;
    for (size_t h = 0; h < factors->size(); ++h) inner->factors[h] *= (*factors)[h];
    return inner;
  }
  return {};
}

// The score itself (0) or c·tanh(score / c) (c).
std::optional<double> match_softcap(const Matcher& m, int32_t i) {
  if (m.is(i, Op::score)) return 0.0;
  if (!m.is(i, Op::mul_f)) return {};
  const bool swapped = m.is(m.at(i).b, Op::const_f);
  const int32_t cap = swapped ? m.at(i).b : m.at(i).a, tanh = swapped ? m.at(i).a : m.at(i).b;
  if (!m.is(cap, Op::const_f) || !m.is(tanh, Op::tanh_f)) return {};
  const int32_t ratio = m.at(tanh).a;
  const double c = m.at(cap).number;
  if (!m.is(ratio, Op::div_f, Op::score, Op::const_f) || m.at(m.at(ratio).b).number != c || !(c > 0))
    return {};
  return c;
}

// The built-in distance is absolute: the same thing where no later key is seen.
bool sees_no_later_key(const Mask& mask) {
  return std::any_of(mask.parts().begin(), mask.parts().end(),
                     [](const auto& part) { return part->is_causal(); });
}

Tensor slopes_tensor(const std::vector<double>& factors, double sign, Dtype dtype) {
  std::vector<double> slopes(factors);
  for (double& x : slopes) x *= sign;
  return Tensor::of({static_cast<int64_t>(slopes.size())}, slopes).to(dtype);
}

}  // namespace

MatchedMask match_mask(const ScoreProgram& program, const Diagonal& diagonal) {
  const Matcher m(program);
  MatchedMask matched;
  match_mask_at(m, m.result(), diagonal, matched);
  return matched;
}

bool match_score(const ScoreProgram& program, const ScoreSizes& sizes, AttentionOptions& options) {
  if (program.learns() || !program.is_uniform(sizes.dtype)) return false;
  const Matcher m(program);
  const int32_t root = m.result();
  if (const auto cap = match_softcap(m, root)) {
    options.softcap = *cap;
    return true;
  }
  const bool adds = m.is(root, Op::add_f);
  if ((!adds && !m.is(root, Op::sub_f)) || sizes.queries != sizes.keys) return false;
  for (const bool swapped : {false, true}) {
    if (swapped && !adds) break;  // slope·distance - score is no ALiBi
    const int32_t score = swapped ? m.at(root).b : m.at(root).a, rest = swapped ? m.at(root).a : m.at(root).b;
    const auto cap = match_softcap(m, score);
    const auto distance = cap ? match_distance(m, rest, sizes.heads) : std::nullopt;
    if (!distance || (!distance->absolute && !sees_no_later_key(options.mask))) continue;
    options.softcap = *cap;
    options.alibi_slopes = slopes_tensor(distance->factors, adds ? -1 : 1, sizes.dtype);
    return true;
  }
  return false;
}

}  // namespace multihead::program
