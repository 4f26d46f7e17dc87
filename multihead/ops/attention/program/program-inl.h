// A traced score or mask function as a list of instructions, run on blocks of 512 scores at a time.
//
// Instruction i writes register i: one block of numbers or of integers (indices, conditions). What does not
// depend on the key is computed once per block of queries instead of once per key. Derivatives are taken in
// reverse, with PyTorch's rules at ties, zeros and infinities.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/ops/attention/masks/mask.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead::program {

enum class Op : uint8_t {
#define MH_INTEGER(name, ...) name,
#define MH_NUMBER(name, ...) name,
#include "multihead/ops/attention/program/operations.inc"
};

/// The Op of a name in operations.inc; throws ValueError.
Op parse_op(const std::string& name);
const char* name_of(Op op);
/// The types of its operands, as in operations.inc.
std::string_view operands_of(Op op);
inline bool is_integer(Op op) { return op < Op::score; }

/// The type that a number is rounded to; `any`: that of the arithmetic.
enum class Kind : uint8_t { any, f16, bf16, f32, f64 };

struct Instruction {
  Op op = Op::const_i;
  int32_t a = -1, b = -1, c = -1, d = -1;  ///< registers
  double number =
      0;  ///< const_i, const_f; the size of bound_i; the type of wrap_i; the key of random_f; see pow_f
  int32_t table = -1;     ///< gather_*
  Kind kind = Kind::any;  ///< of a number

  std::array<int32_t, 4> operands() const { return {a, b, c, d}; }
};

/// Errors while a program runs, raised by the call that ran it.
enum Fault : uint8_t { kOutOfRange = 1, kDivisionByZero = 2, kWideInteger = 4 };

/// How an index moves over a tile: by `query` from one query to the next, by `key` from one key to the next.
struct Steps {
  bool known = false;
  int64_t query = 0, key = 0;
};

/// The tile that a program runs on. Its first query stands at position `query` among the keys and is row
/// query - offset of its tensor.
struct TilePlace {
  int64_t batch = 0, head = 0, query = 0, key = 0, queries = 0, keys = 0, offset = 0;
};

class ScoreProgram {
 public:
  /// A table that gets a gradient, and the tensor it was made from.
  struct Learnt {
    int32_t table = 0;
    Tensor tensor;
  };
  /// `tables`: contiguous f32, f64, i32 (gather_i: i32). The result is the last instruction's register. Throws
  /// ValueError for an operand that is missing, of the other type or computed later, and for a table that is
  /// missing, empty or of the other type.
  ScoreProgram(std::vector<Instruction> code, std::vector<Tensor> tables, std::vector<Learnt> learnt = {});

  /// `offset`: of the queries' positions among the keys.
  template <class T>
  void apply(const kernels::ScoreTile& tile, int64_t offset, T* derivative) const;
  /// kernels::ScoreFunction::backward.
  template <class T>
  void backward(const kernels::ScoreTile& tile, int64_t offset, T* d_scores, T* sums) const;
  void fill(const kernels::KeepTile& tile, int64_t offset) const;
  /// By interval arithmetic over the block.
  kernels::BlockClass classify(const kernels::KeepTile& tile, int64_t offset) const;

  /// The class of every block of `rows` queries and `columns` keys, exactly: i32 [B or 1, H or 1, blocks,
  /// blocks], one where the sample or the head makes no difference.
  Tensor block_classes(const TilePlace& sizes, int64_t rows, int64_t columns) const;
  /// scores [B, H, Tk, Tq] become results, d_results become gradients of the scores; returns those of what
  /// learns. What the kernels do tile by tile, on its own: for tests.
  template <class T>
  std::vector<T> differentiate(const Tensor& scores, const Tensor& d_results) const;
  /// The same for programs that do the same.
  uint64_t fingerprint() const;
  /// The program of the condition that all of `registers` hold, which are this program's.
  ScoreProgram conjunction(const std::vector<int32_t>& registers) const;
  bool uses(Op op) const;

  bool is_mask() const { return is_integer(code_.back().op); }
  /// The Faults since the last call, forgotten. An index outside gave the nearest element, x / 0 gave 0.
  int take_faults() const { return faults_->exchange(0, std::memory_order_relaxed); }
  bool learns() const { return !learnt_.empty(); }
  /// The tensors that learn, in the order of the sums.
  std::vector<Tensor> captured() const;
  /// The tables; in place of those that learn, the tensors that they were made from.
  std::vector<Tensor> sources() const;
  const std::vector<Learnt>& learnt() const { return learnt_; }
  /// The program with what those tensors hold now.
  ScoreProgram refreshed() const;
  /// Whether every number is of the arithmetic's own type.
  bool is_uniform(Dtype arithmetic) const;
  /// Whether a number is wider than f32.
  bool is_wide() const { return wide_; }

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
  /// Depends on the score, or on a table that learns, by numbers alone.
  bool is_active(int32_t i) const { return active_[static_cast<size_t>(i)] != 0; }
  bool depends_on_key(int32_t i) const { return depends_on_key_[static_cast<size_t>(i)] != 0; }
  bool depends_on_score(int32_t i) const { return on_score_[static_cast<size_t>(i)] != 0; }
  /// An integer that may leave 32 bits as far as is known beforehand.
  bool is_checked(int32_t i) const { return checked_[static_cast<size_t>(i)] != 0; }
  /// Where a table's gradient lies in the sums, -1: it has none.
  int64_t sums_begin(int32_t table) const { return sums_begin_[static_cast<size_t>(table)]; }
  void note(Fault fault) const { faults_->fetch_or(fault, std::memory_order_relaxed); }

 private:
  void analyse();
  void find_checked();
  void find_steps();
  void find_slots();
  Lists make_lists(bool by_rows) const;

  std::vector<Instruction> code_;
  std::vector<Tensor> tables_;
  Lists lists_, by_rows_;
  std::vector<Learnt> learnt_;
  std::vector<int64_t> sums_begin_;
  std::vector<uint8_t> active_, on_score_, depends_on_key_, checked_;
  std::vector<Steps> steps_;
  std::vector<int32_t> slots_;
  int32_t slot_count_ = 0;
  bool has_rows_ = false, wide_ = false;
  // Shared with the conjunctions made of parts of this program.
  std::shared_ptr<std::atomic<int>> faults_ = std::make_shared<std::atomic<int>>(0);
};

/// A table as programs read it: f64, f32 or i32, contiguous, a copy.
Tensor to_table(const Tensor& x);
ScoreMod to_score_mod(std::shared_ptr<const ScoreProgram> program);
Mask to_mask(const std::shared_ptr<const ScoreProgram>& program, Diagonal diagonal);
/// The program that this part of a mask runs, or null.
const ScoreProgram* program_of(const MaskPart& part);

}  // namespace multihead::program
