// From options and masks to what the attention kernels take. Internal to ops.
#pragma once

#include <array>
#include <string>

#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead::detail {

/// The tensors of AttentionOptions that get gradients, in the order of every list of them.
enum Term : size_t { kBias, kAlibiSlopes, kRelativeBias, kSinks, kRelativeKey };
inline constexpr Tensor AttentionOptions::*kTerms[] = {
    &AttentionOptions::bias, &AttentionOptions::alibi_slopes, &AttentionOptions::relative_bias,
    &AttentionOptions::sinks, &AttentionOptions::relative_key};
inline constexpr size_t kTermCount = std::size(kTerms);
using TermTensors = std::array<Tensor, kTermCount>;

/// That of the arithmetic on queries of `dtype`: f64 for f64, else f32.
Dtype arithmetic_dtype(Dtype dtype);

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

  /// In the memory that the kernel reads, undefined if absent: relative_bias always [H, span], relative_key
  /// [H or 1, span, D] with a contiguous last axis.
  const Tensor& tensor(Term term) const { return tensors_[term]; }
  /// The shape of the gradient of each.
  const Shape& shape(Term term) const { return shapes_[term]; }
  const ScoreMod& score_mod() const { return score_mod_; }

 private:
  void bind_numbers(const AttentionOptions& options);
  void bind_terms(const AttentionOptions& options, Dtype dtype);
  void bind_relative(const AttentionOptions& options, Dtype dtype);
  int64_t relative_center(const AttentionOptions& options, const char* name, int64_t span) const;
  void bind_dropout(const AttentionOptions& options);
  void fill_terms(double softcap, Dtype dtype);

  std::string who_;
  AttentionSizes sizes_;
  BoundMask mask_;
  kernels::AttentionProblem problem_;
  ScoreMod score_mod_;
  ScoreContext score_context_;
  kernels::ScoreTerms terms_;
  TermTensors tensors_;
  std::array<Shape, kTermCount> shapes_;
  int64_t relative_center_ = 0, relative_key_center_ = 0;
};

/// The kernels' name for a stream of dropout numbers.
uint64_t dropout_key(const RandomStream& stream);

}  // namespace multihead::detail
