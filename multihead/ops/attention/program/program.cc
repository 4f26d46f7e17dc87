#include "multihead/ops/attention/program/program-inl.h"

#include <algorithm>
#include <memory>

#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/program/match-inl.h"

namespace multihead::program {
namespace {

struct Operation {
  const char* name;
  const char* operands;
};
constexpr Operation kOperations[] = {
#define MH_INTEGER(name, operands, ...) {#name, operands},
#define MH_NUMBER(name, operands, ...) {#name, operands},
#include "multihead/ops/attention/program/operations.inc"
};
const Operation& operation_of(Op op) { return kOperations[static_cast<size_t>(op)]; }

// The registers that instruction `i` reads must have been written, by operations of the right type.
void check_operands(const std::vector<Instruction>& code, size_t i) {
  const std::string_view types = operands_of(code[i].op);
  const auto registers = code[i].operands();
  for (size_t n = 0; n < registers.size(); ++n) {
    const int32_t from = registers[n];
    MH_CHECK(from < static_cast<int32_t>(i), ValueError, "score expression: instruction ", i, " reads ahead");
    const char type = n < types.size() ? types[n] : 'F';
    if (from < 0) {
      MH_CHECK(type == 'F' || type == 'I', ValueError, "score expression: instruction ", i, " (",
               name_of(code[i].op), ") lacks operand ", n);
    } else {
      const bool fits =
          n < types.size() && is_integer(code[static_cast<size_t>(from)].op) == (type == 'i' || type == 'I');
      MH_CHECK(fits, ValueError, "score expression: instruction ", i, " (", name_of(code[i].op),
               ") cannot take register ", from, " as operand ", n);
    }
  }
}

void check_table(const Instruction& in, const std::vector<Tensor>& tables) {
  if (in.op != Op::gather_i && in.op != Op::gather_f) return;
  MH_CHECK(in.table >= 0 && in.table < static_cast<int32_t>(tables.size()), ValueError,
           "score expression: no table ", in.table);
  const Tensor& table = tables[static_cast<size_t>(in.table)];
  MH_CHECK(table.is_contiguous() && table.numel() > 0, ValueError,
           "score expression: a captured tensor is empty");
  MH_CHECK((table.dtype() == Dtype::i32) == is_integer(in.op), ValueError,
           "score expression: ", name_of(in.op), " cannot read a table of ", table.dtype());
}

}  // namespace

Op parse_op(const std::string& name) {
  for (size_t i = 0; i < std::size(kOperations); ++i) {
    if (kOperations[i].name == name) return static_cast<Op>(i);
  }
  throw ValueError("score expression: unknown operation '" + name + "'");
}

const char* name_of(Op op) { return operation_of(op).name; }
std::string_view operands_of(Op op) { return operation_of(op).operands; }

ScoreProgram::ScoreProgram(std::vector<Instruction> code, std::vector<Tensor> tables,
                           std::vector<Learnt> learnt)
    : code_(std::move(code)), tables_(std::move(tables)), learnt_(std::move(learnt)) {
  MH_CHECK(!code_.empty(), ValueError, "score expression: empty");
  sums_begin_.assign(tables_.size(), -1);
  int64_t begin = 0;
  for (const auto& [table, tensor] : learnt_) {
    MH_CHECK(table >= 0 && table < static_cast<int32_t>(tables_.size()), ValueError,
             "score expression: no table ", table);
    sums_begin_[static_cast<size_t>(table)] = begin;
    begin += tables_[static_cast<size_t>(table)].numel();
  }
  for (size_t i = 0; i < code_.size(); ++i) {
    check_operands(code_, i);
    check_table(code_[i], tables_);
  }
  analyse();
}

void ScoreProgram::analyse() {
  depends_on_key_.resize(code_.size());
  active_.resize(code_.size());
  on_score_.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    const Instruction& in = code_[i];
    const bool is_score = in.op == Op::score;
    const bool learns = in.op == Op::gather_f && sums_begin(in.table) >= 0;
    uint8_t key = in.op == Op::key || is_score, active = is_score || learns, on_score = is_score;
    for (const int32_t from : in.operands()) {
      if (from < 0) continue;
      key |= depends_on_key_[static_cast<size_t>(from)];
      active |= active_[static_cast<size_t>(from)];
      on_score |= on_score_[static_cast<size_t>(from)];
    }
    depends_on_key_[i] = key;
    active_[i] = active && !is_integer(in.op) && in.op != Op::detach_f;
    on_score_[i] = on_score;
    wide_ = wide_ || (in.kind == Kind::f64 && !is_integer(in.op));
  }
  // What only conditions read has no gradient, not even zeros.
  std::vector<uint8_t> reached(code_.size());
  reached.back() = 1;
  for (size_t i = code_.size(); i-- > 0;) {
    if (reached[i] == 0 || is_integer(code_[i].op) || code_[i].op == Op::detach_f) continue;
    for (const int32_t from : code_[i].operands()) {
      if (from >= 0) reached[static_cast<size_t>(from)] = 1;
    }
  }
  for (size_t i = 0; i < code_.size(); ++i) active_[i] &= reached[i];
  find_checked();
  find_steps();
  lists_ = make_lists(false);
  by_rows_ = make_lists(true);
  find_slots();
}

// Only registers that are written for each key can share: the others' values are written once per tile.
void ScoreProgram::find_slots() {
  const auto shares = [&](int32_t i) {
    const auto n = static_cast<size_t>(i);
    return depends_on_key_[n] != 0 && code_[n].op != Op::score && n + 1 != code_.size();
  };
  std::vector<int32_t> last_use(code_.size(), -1), free;
  for (const int32_t i : lists_.per_key) {
    const Instruction& in = code_[static_cast<size_t>(i)];
    for (const int32_t from : in.operands()) {
      if (from >= 0) last_use[static_cast<size_t>(from)] = i;
    }
  }
  slots_.resize(code_.size());
  for (size_t i = 0; i < code_.size(); ++i) {
    if (shares(static_cast<int32_t>(i)) && !free.empty()) {
      slots_[i] = free.back();
      free.pop_back();
    } else {
      slots_[i] = slot_count_++;
    }
    // After the result has its slot: it is written while the operands are still read.
    const Instruction& in = code_[i];
    for (const int32_t from : in.operands()) {
      if (from < 0 || !shares(from) || last_use[static_cast<size_t>(from)] != static_cast<int32_t>(i))
        continue;
      free.push_back(slots_[static_cast<size_t>(from)]);
      last_use[static_cast<size_t>(from)] = -1;  // an instruction may read it twice
    }
  }
}

ScoreProgram::Lists ScoreProgram::make_lists(bool by_rows) const {
  std::vector<uint8_t> used(code_.size());
  used.back() = 1;
  for (size_t i = code_.size(); i-- > 0;) {
    if (by_rows && reads_rows(static_cast<int32_t>(i))) continue;
    for (const int32_t from : code_[i].operands()) {
      if (from >= 0 && used[i] != 0) used[static_cast<size_t>(from)] = 1;
    }
  }
  Lists lists;
  for (size_t i = 0; i < code_.size(); ++i) {
    if (code_[i].op == Op::score || used[i] == 0) continue;
    (depends_on_key_[i] != 0 ? lists.per_key : lists.once).push_back(static_cast<int32_t>(i));
  }
  return lists;
}

bool ScoreProgram::is_uniform(Dtype arithmetic) const {
  const Kind own = arithmetic == Dtype::f64 ? Kind::f64 : Kind::f32;
  return std::all_of(code_.begin(), code_.end(), [&](const Instruction& in) {
    return is_integer(in.op) || in.kind == Kind::any || in.kind == own;
  });
}

std::vector<Tensor> ScoreProgram::captured() const {
  std::vector<Tensor> tensors;
  for (const Learnt& x : learnt_) tensors.push_back(x.tensor);
  return tensors;
}

std::vector<Tensor> ScoreProgram::sources() const {
  std::vector<Tensor> tensors = tables_;
  for (const Learnt& x : learnt_) tensors[static_cast<size_t>(x.table)] = x.tensor;
  return tensors;
}

ScoreProgram ScoreProgram::refreshed() const {
  ScoreProgram copy = *this;
  for (const Learnt& x : learnt_) copy.tables_[static_cast<size_t>(x.table)] = to_table(x.tensor);
  return copy;
}

Tensor to_table(const Tensor& x) {
  if (x.dtype() == Dtype::i64) {
    const std::vector<int64_t> values = x.to_vector<int64_t>();
    const auto fits = [](int64_t v) { return v == static_cast<int32_t>(v); };
    MH_CHECK(std::all_of(values.begin(), values.end(), fits), ValueError,
             "score expression: a captured tensor holds integers beyond 32 bits");
  }
  const Dtype dtype = x.dtype() == Dtype::f64 ? Dtype::f64 : is_floating(x.dtype()) ? Dtype::f32 : Dtype::i32;
  const Tensor dense = x.detach().contiguous();
  return dense.dtype() == dtype ? dense.clone() : dense.to(dtype);
}

namespace {

const ScoreProgram& program_in(const void* context) {
  return *static_cast<const ScoreProgram*>(static_cast<const detail::ScoreContext*>(context)->function);
}
int64_t offset_in(const void* context, const kernels::ScoreTile& tile) {
  return static_cast<const detail::ScoreContext*>(context)->offset_of(tile.batch);
}

// A program sees whole tiles, not single scores, and chooses its instruction set itself.
template <class T>
kernels::ScoreFunction tile_functions(bool) {
  using kernels::ScoreTile;
  return {
      .apply = [](const void* c, const ScoreTile& t) { program_in(c).apply<T>(t, offset_in(c, t), nullptr); },
      .apply_with_derivative = [](const void* c, const ScoreTile& t,
                                  void* d) { program_in(c).apply(t, offset_in(c, t), static_cast<T*>(d)); },
      .backward =
          [](const void* c, const ScoreTile& t, void* d, void* sums) {
            program_in(c).backward(t, offset_in(c, t), static_cast<T*>(d), static_cast<T*>(sums));
          }};
}

}  // namespace

// An optimizer changes what learns between calls, so that every call reads it again.
ScoreMod to_score_mod(std::shared_ptr<const ScoreProgram> program) {
  std::vector<Tensor> captured = program->captured();
  if (program->learns()) program = std::make_shared<const ScoreProgram>(program->refreshed());
  return {std::move(program), tile_functions<float>, tile_functions<double>, std::move(captured)};
}

ScoreProgram ScoreProgram::conjunction(const std::vector<int32_t>& registers) const {
  std::vector<Instruction> code(code_.begin(), code_.begin() + registers[0] + 1);
  if (registers.size() > 1) code = code_;
  int32_t all = registers[0];
  for (size_t i = 1; i < registers.size(); ++i) {
    code.push_back({Op::and_i, all, registers[i]});
    all = static_cast<int32_t>(code.size()) - 1;
  }
  ScoreProgram result(std::move(code), tables_);
  result.faults_ = faults_;
  return result;
}

bool ScoreProgram::uses(Op op) const {
  const auto is_op = [&](int32_t i) { return code_[static_cast<size_t>(i)].op == op; };
  return std::any_of(lists_.once.begin(), lists_.once.end(), is_op) ||
         std::any_of(lists_.per_key.begin(), lists_.per_key.end(), is_op);
}

namespace {

class ProgramMask final : public detail::FunctionMask {
 public:
  ProgramMask(ScoreProgram program, Diagonal diagonal)
      : FunctionMask(std::move(diagonal)), program_(std::move(program)) {}

  void fill(const kernels::KeepTile& tile, int64_t offset) const override { program_.fill(tile, offset); }
  bool classifies() const override { return true; }
  BlockClass classify(const kernels::KeepTile& tile, int64_t offset) const override {
    return program_.classify(tile, offset);
  }
  bool every_head() const override { return !program_.uses(Op::head); }
  const ScoreProgram& program() const { return program_; }

 private:
  ScoreProgram program_;
};

}  // namespace

const ScoreProgram* program_of(const MaskPart& part) {
  const auto* mask = dynamic_cast<const ProgramMask*>(&part);
  return mask != nullptr ? &mask->program() : nullptr;
}

Mask to_mask(const std::shared_ptr<const ScoreProgram>& program, Diagonal diagonal) {
  MatchedMask matched = match_mask(*program, diagonal);
  if (matched.rest.empty()) return matched.mask;
  return matched.mask &
         Mask(std::make_shared<ProgramMask>(program->conjunction(matched.rest), std::move(diagonal)));
}

}  // namespace multihead::program
