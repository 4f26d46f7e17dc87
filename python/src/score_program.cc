#include "python/src/score_program.h"

#include <array>
#include <memory>

#include "multihead/core/error.h"
#include "python/src/score_program_match.h"

namespace multihead::python {
namespace {

constexpr std::array<const char*, 54> kNames = {
    "batch",     "head",    "query",    "key",   "const_i", "to_i",    "add_i",   "sub_i",    "mul_i",
    "div_i",     "mod_i",   "min_i",    "max_i", "abs_i",   "neg_i",   "and_i",   "or_i",     "xor_i",
    "not_b",     "eq_i",    "ne_i",     "lt_i",  "le_i",    "eq_f",    "ne_f",    "lt_f",     "le_f",
    "select_i",  "bound_i", "gather_i", "score", "const_f", "to_f",    "add_f",   "sub_f",    "mul_f",
    "div_f",     "neg_f",   "abs_f",    "min_f", "max_f",   "exp_f",   "log_f",   "sqrt_f",   "tanh_f",
    "sigmoid_f", "sin_f",   "cos_f",    "erf_f", "pow_f",   "floor_f", "round_f", "select_f", "gather_f"};
static_assert(static_cast<size_t>(Op::gather_f) + 1 == kNames.size());

}  // namespace

Op parse_op(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Op>(i);
  }
  throw ValueError("score expression: unknown operation '" + name + "'");
}

ScoreProgram::ScoreProgram(std::vector<Instruction> code, std::vector<Tensor> tables)
    : code_(std::move(code)), tables_(std::move(tables)) {
  MH_CHECK(!code_.empty(), ValueError, "score expression: empty");
  for (size_t i = 0; i < code_.size(); ++i) {
    for (const int32_t from : {code_[i].a, code_[i].b, code_[i].c}) {
      MH_CHECK(from < static_cast<int32_t>(i), ValueError, "score expression: instruction ", i,
               " reads ahead");
    }
    const bool gathers = code_[i].op == Op::gather_i || code_[i].op == Op::gather_f;
    if (!gathers) continue;
    MH_CHECK(code_[i].table >= 0 && code_[i].table < static_cast<int32_t>(tables_.size()), ValueError,
             "score expression: no table ", code_[i].table);
    const Tensor& table = tables_[static_cast<size_t>(code_[i].table)];
    MH_CHECK(table.is_contiguous() && table.numel() > 0, ValueError,
             "score expression: a captured tensor is empty");
  }
  analyse();
}

void ScoreProgram::analyse() {
  std::vector<uint8_t> depends_on_key(code_.size()), used(code_.size());
  used.back() = 1;
  for (size_t i = code_.size(); i-- > 0;) {
    for (const int32_t from : {code_[i].a, code_[i].b, code_[i].c}) {
      if (from >= 0 && used[i] != 0) used[static_cast<size_t>(from)] = 1;
    }
  }
  active_.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    const Instruction& in = code_[i];
    const bool is_score = in.op == Op::score;
    uint8_t key = in.op == Op::key || is_score, active = is_score;
    for (const int32_t from : {in.a, in.b, in.c}) {
      if (from < 0) continue;
      key |= depends_on_key[static_cast<size_t>(from)];
      active |= active_[static_cast<size_t>(from)];
    }
    depends_on_key[i] = key;
    active_[i] = active && !is_integer(in.op);
    if (is_score || used[i] == 0) continue;
    (key ? per_key_ : once_).push_back(static_cast<int32_t>(i));
  }
}

ScoreMod to_score_mod(std::shared_ptr<const ScoreProgram> program) { return ScoreMod(std::move(program)); }

Mask to_mask(std::shared_ptr<const ScoreProgram> program) {
  if (std::optional<Mask> mask = match_mask(*program)) return *mask;
  MaskPart part;
  part.kind = MaskPart::Kind::function;
  part.diagonal = Align::start;
  part.fill = [](const void* function, const kernels::KeepTile& tile, int64_t) {
    static_cast<const ScoreProgram*>(function)->fill(tile);
  };
  part.classify = [](const void* function, const kernels::KeepTile& tile, int64_t) {
    return static_cast<const ScoreProgram*>(function)->classify(tile);
  };
  part.function = std::move(program);
  return Mask(std::move(part));
}

}  // namespace multihead::python
