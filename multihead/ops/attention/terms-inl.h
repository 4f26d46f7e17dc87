// The terms of a score, one row each: how a term is checked and passed to the kernel, explained, and composed
// of ops. Internal to ops.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "multihead/ops/attention/composed-inl.h"

namespace multihead::detail {

/// A call while its terms are checked and passed to the kernel.
struct TermBinding {
  const std::string& who;
  const AttentionSizes& sizes;
  const AttentionOptions& options;
  const ScoreMod& score_mod;
  Dtype dtype;                          ///< of the queries
  const std::vector<int64_t>& offsets;  ///< of the queries' positions, per sample or one for all
  ScoreContext& context;
  kernels::ScoreTerms& to;
};

/// The functions of a row run only in calls that have the term.
struct AttentionTerm {
  bool (*is_set)(const AttentionOptions& options, const ScoreMod& score_mod);
  /// Throws unless the option fits the call, and passes it to the kernel. Returns a tensor in the memory that
  /// the kernel reads.
  Tensor (*bind)(const TermBinding& call);
  std::string (*explain)(const AttentionOptions& options);
  /// The scores [B, H, rows, Tk] with the term. Null: it acts in Composition::softmax() or
  /// output().
  Tensor (*compose)(const Tensor& scores, const Composition& call);
  Tensor AttentionOptions::*tensor = nullptr;             ///< gets a gradient
  void* kernels::AttentionGradient::*gradient = nullptr;  ///< which the kernel writes here
};

/// In the order in which they act.
std::span<const AttentionTerm> attention_terms();

}  // namespace multihead::detail
