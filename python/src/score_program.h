// A traced score or mask function as a list of instructions, run on blocks of 512 scores at a time.
//
// Instruction i writes register i: one block of numbers (values, and for the backward derivatives with
// respect to the score) or of integers (indices, conditions). What does not depend on the key is computed
// once per block of queries instead of once per key.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/ops/mask.h"
#include "multihead/ops/score_mod.h"

namespace multihead::python {

enum class Op : uint8_t {
  // integers
  batch,
  head,
  query,
  key,
  const_i,
  to_i,
  add_i,
  sub_i,
  mul_i,
  div_i,
  mod_i,
  min_i,
  max_i,
  abs_i,
  neg_i,
  and_i,
  or_i,
  xor_i,
  not_b,
  eq_i,
  ne_i,
  lt_i,
  le_i,
  eq_f,
  ne_f,
  lt_f,
  le_f,
  select_i,
  bound_i,
  gather_i,
  // numbers
  score,
  const_f,
  to_f,
  add_f,
  sub_f,
  mul_f,
  div_f,
  neg_f,
  abs_f,
  min_f,
  max_f,
  exp_f,
  log_f,
  sqrt_f,
  tanh_f,
  sigmoid_f,
  sin_f,
  cos_f,
  erf_f,
  pow_f,
  floor_f,
  round_f,
  select_f,
  gather_f,
};

/// The Op of a name as above; throws ValueError.
Op parse_op(const std::string& name);
inline bool is_integer(Op op) { return op < Op::score; }

struct Instruction {
  Op op = Op::const_i;
  int32_t a = -1, b = -1, c = -1;  ///< registers
  double number = 0;               ///< const_i, const_f; the size of bound_i
  int32_t table = -1;              ///< gather_*
};

/// How an index moves over a tile: by `query` from one query to the next, by `key` from one key to the next.
struct Steps {
  bool known = false;
  int64_t query = 0, key = 0;
};

/// The tile that a program runs on.
struct TilePlace {
  int64_t batch = 0, head = 0, query = 0, key = 0, queries = 0, keys = 0;
};

class ScoreProgram {
 public:
  /// `tables`: contiguous f32, f64, i32 (gather_i: i32). The result is the last instruction's register.
  ScoreProgram(std::vector<Instruction> code, std::vector<Tensor> tables);

  template <class T>
  void apply(const kernels::ScoreTile<T>& tile, T* derivative) const;
  void fill(const kernels::KeepTile& tile) const;
  /// By interval arithmetic over the block.
  kernels::BlockClass classify(const kernels::KeepTile& tile) const;

  /// The program of the condition that all of `registers` hold, which are this program's.
  ScoreProgram conjunction(const std::vector<int32_t>& registers) const;
  bool uses(Op op) const;

  bool is_mask() const { return is_integer(code_.back().op); }
  /// True once an index was out of its tensor's range; such reads gave the nearest element.
  bool out_of_range() const { return out_of_range_->load(std::memory_order_relaxed); }

  // Read by the loops.
  const std::vector<Instruction>& code() const { return code_; }
  const std::vector<Tensor>& tables() const { return tables_; }
  struct Lists {
    std::vector<int32_t> once, per_key;  ///< per block of queries, per key
  };
  /// `by_rows`: without what only serves indices of gathers that read whole rows.
  const Lists& lists(bool by_rows) const { return by_rows ? by_rows_ : lists_; }
  /// The memory of each register: those that live at different times share it.
  const std::vector<int32_t>& slots() const { return slots_; }
  int32_t slot_count() const { return slot_count_; }
  const Steps& steps(int32_t i) const { return steps_[static_cast<size_t>(i)]; }
  /// A gather whose neighbours in a row are neighbours in the table, or the same element.
  bool reads_rows(int32_t i) const;
  /// first[i] <- the index that register i holds at the tile's first query and key, where its steps are
  /// known. False if there is no gather by rows, or one that leaves its table's range somewhere in the tile.
  bool find_first(const TilePlace& tile, std::vector<int64_t>& first) const;
  bool is_active(int32_t i) const { return active_[static_cast<size_t>(i)] != 0; }  ///< depends on the score
  void note_out_of_range() const { out_of_range_->store(true, std::memory_order_relaxed); }

 private:
  void analyse();
  void find_steps();
  void find_slots();
  Lists make_lists(bool by_rows) const;

  std::vector<Instruction> code_;
  std::vector<Tensor> tables_;
  Lists lists_, by_rows_;
  std::vector<uint8_t> active_, depends_on_key_;
  std::vector<Steps> steps_;
  std::vector<int32_t> slots_;
  int32_t slot_count_ = 0;
  bool has_rows_ = false;
  // Shared with the conjunctions made of parts of this program.
  std::shared_ptr<std::atomic<bool>> out_of_range_ = std::make_shared<std::atomic<bool>>(false);
};

ScoreMod to_score_mod(std::shared_ptr<const ScoreProgram> program);
Mask to_mask(std::shared_ptr<const ScoreProgram> program);

}  // namespace multihead::python

namespace multihead::detail {

// A program sees whole tiles, not single scores.
template <class T>
void program_apply(const void* context, const kernels::ScoreTile<T>& tile) {
  const auto& bound = *static_cast<const ScoreContext*>(context);
  static_cast<const python::ScoreProgram*>(bound.function)->apply<T>(tile, nullptr);
}
template <class T>
void program_apply_with_derivative(const void* context, const kernels::ScoreTile<T>& tile, T* derivative) {
  const auto& bound = *static_cast<const ScoreContext*>(context);
  static_cast<const python::ScoreProgram*>(bound.function)->apply<T>(tile, derivative);
}
template <>
inline ScoreTable<float> score_table<python::ScoreProgram, float>(bool) {
  return {program_apply<float>, program_apply_with_derivative<float>};
}
template <>
inline ScoreTable<double> score_table<python::ScoreProgram, double>(bool) {
  return {program_apply<double>, program_apply_with_derivative<double>};
}

}  // namespace multihead::detail
