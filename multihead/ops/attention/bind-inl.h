// From options and masks to what the attention kernels take. Internal to ops.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead::detail {

/// Sizes of one call. In a ragged batch `batch` counts the sequences, `queries` and `keys` are the longest.
struct AttentionSizes {
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int64_t queries = 0, keys = 0;
  int64_t head_dim = 0, value_dim = 0;
  std::vector<kernels::AttentionSequence> sequences;  // empty: not ragged
  bool ragged = false;

  int64_t query_count(int64_t b) const {
    return ragged ? sequences[static_cast<size_t>(b)].query_count : queries;
  }
  int64_t key_count(int64_t b) const { return ragged ? sequences[static_cast<size_t>(b)].key_count : keys; }
};

/// The exclusions of a mask in the kernel's terms, with the memory they point to.
class BoundMask {
 public:
  BoundMask(std::string who, const AttentionSizes& sizes, const Mask& mask);
  BoundMask(const BoundMask&) = delete;
  BoundMask& operator=(const BoundMask&) = delete;

  /// Fills the exclusions and the diagonal of `problem`, which must not outlive this.
  void apply(kernels::AttentionProblem& problem) const;
  /// Offset of query positions, per sample or one for all.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// What runs how, for explain(): one entry per part.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Function {  // a part that needs code per element
    MaskPart part;
    std::vector<int64_t> offsets, query_ids, key_ids;
    int64_t queries = 0, keys = 0, query_id_stride = 0, key_id_stride = 0;
    kernels::Strides4 flags;  // blocks
  };

  std::vector<int64_t> resolve(const Diagonal& diagonal) const;
  std::vector<int64_t> per_sample(const Tensor& values, const char* name, bool keys) const;
  int64_t at(const std::vector<int64_t>& values, int64_t b) const;
  void ensure_intervals();
  void add_band(const MaskPart& part);
  void add_prefix(const MaskPart& part);
  void add_key_lengths(const MaskPart& part);
  void add_query_lengths(const MaskPart& part);
  void add_documents(const MaskPart& part);
  void add_function(const MaskPart& part);
  bool find_intervals(const Function& f);
  void intersect_intervals(const std::vector<int64_t>& begin, const std::vector<int64_t>& end);
  void add_flags(const MaskPart& part);
  void check_exact(const MaskPart& part) const;
  void add_blocks(const MaskPart& part);
  void combine_flags();
  static void fill(const void* self, const kernels::KeepTile& tile);
  static kernels::BlockClass classify(const void* self, const kernels::KeepTile& tile);
  static void fill_part(const Function& f, const kernels::KeepTile& tile);

  std::string who_;
  AttentionSizes sizes_;
  bool causal_ = false;
  int64_t left_ = -1, right_ = -1;
  std::vector<int64_t> offsets_, key_lengths_, query_lengths_;
  std::vector<int64_t> begin_, end_;  // intervals [B, Tq]
  std::vector<MaskPart> flags_;
  Tensor keep_;
  kernels::Strides4 keep_strides_;
  std::vector<uint8_t> keep_classes_;
  std::vector<Function> functions_;
  std::vector<std::string> notes_;
};

/// One call's options, checked and in the kernel's terms. Shared by forward, backward and capture.
class BoundAttention {
 public:
  /// `dtype` is that of the arithmetic: f32 or f64.
  BoundAttention(std::string who, const AttentionSizes& sizes, const AttentionOptions& options,
                 const ScoreMod& score_mod, Dtype dtype);
  BoundAttention(const BoundAttention&) = delete;
  BoundAttention& operator=(const BoundAttention&) = delete;

  const kernels::AttentionProblem& problem() const { return problem_; }
  /// The terms for T = float or double; the other one is empty.
  template <class T>
  const kernels::ScoreTerms<T>& terms() const;

  const AttentionSizes& sizes() const { return sizes_; }
  const BoundMask& mask() const { return mask_; }
  bool error_on_empty_row() const { return error_on_empty_row_; }
  const std::string& who() const { return who_; }

  // The additive terms in the memory that the kernel reads; undefined if absent.
  const Tensor& bias() const { return bias_; }
  const Tensor& alibi_slopes() const { return alibi_slopes_; }
  /// Always [H, span].
  const Tensor& relative_bias() const { return relative_bias_; }
  /// [H or 1, span, D]; the last axis is contiguous.
  const Tensor& relative_key() const { return relative_key_; }
  const Tensor& sinks() const { return sinks_; }
  const ScoreMod& score_mod() const { return score_mod_; }

 private:
  void bind_numbers(const AttentionOptions& options);
  void bind_terms(const AttentionOptions& options, Dtype dtype);
  void bind_relative(const AttentionOptions& options, Dtype dtype);
  int64_t relative_center(const AttentionOptions& options, const char* name, int64_t span) const;
  void bind_dropout(const AttentionOptions& options);
  template <class T>
  void fill_terms(const AttentionOptions& options, kernels::ScoreTerms<T>& terms) const;

  std::string who_;
  AttentionSizes sizes_;
  BoundMask mask_;
  kernels::AttentionProblem problem_;
  ScoreMod score_mod_;
  ScoreContext score_context_;
  kernels::ScoreTerms<float> terms_f32_;
  kernels::ScoreTerms<double> terms_f64_;
  Tensor bias_, alibi_slopes_, relative_bias_, relative_key_, sinks_;
  int64_t relative_center_ = 0, relative_key_center_ = 0;
  bool error_on_empty_row_ = false;
};

/// The kernels' name for a stream of dropout numbers.
uint64_t dropout_key(const RandomStream& stream);

/// Strides that broadcast `x` right-aligned to [B, H, Tq, Tk]; ShapeError "who: what must broadcast …".
kernels::Strides4 broadcast_strides(const std::string& who, const char* what, const Tensor& x,
                                    const AttentionSizes& sizes);

}  // namespace multihead::detail
