// From options and masks to what the attention kernels take. Internal to ops.
#pragma once

#include <array>
#include <string>

#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead::detail {

/// One tensor for each of kLearnedOptions.
using TermTensors = std::array<Tensor, kLearnedCount>;

/// One call's options, checked and in the kernel's terms. Shared by forward, backward and capture.
class BoundAttention {
 public:
  /// `dtype` is that of the queries.
  BoundAttention(std::string who, const AttentionSizes& sizes, const AttentionOptions& options,
                 const ScoreMod& score_mod, Dtype dtype);
  BoundAttention(const BoundAttention&) = delete;
  BoundAttention& operator=(const BoundAttention&) = delete;

  const kernels::AttentionProblem& problem() const { return problem_; }
  const kernels::ScoreTerms& terms() const { return terms_; }
  const AttentionSizes& sizes() const { return sizes_; }
  const BoundMask& mask() const { return mask_; }
  const std::string& who() const { return who_; }

  /// A tensor of the options in the memory that the kernel reads; undefined if absent. Tables are [H, span,
  /// ...].
  const Tensor& tensor(Tensor AttentionOptions::*option) const { return tensors_[learned_index(option)]; }
  /// The shape of its gradient.
  const Shape& shape(Tensor AttentionOptions::*option) const { return shapes_[learned_index(option)]; }
  const ScoreMod& score_mod() const { return score_mod_; }

 private:
  void bind_numbers(const AttentionOptions& options, Dtype dtype);
  void bind_dropout(const AttentionOptions& options);

  std::string who_;
  AttentionSizes sizes_;
  BoundMask mask_;
  kernels::AttentionProblem problem_;
  ScoreMod score_mod_;
  ScoreContext score_context_;
  kernels::ScoreTerms terms_;
  TermTensors tensors_;
  std::array<Shape, kLearnedCount> shapes_;
};

/// The kernels' name for a stream of dropout numbers.
uint64_t dropout_key(const RandomStream& stream);

}  // namespace multihead::detail
