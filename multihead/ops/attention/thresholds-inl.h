// Sparsemax and entmax-1.5, whose weights lie above a threshold per row. Internal to ops.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead::detail {

/// Whether the weights of a row lie above a threshold that attention() looks for itself.
inline bool has_threshold(Normalise normalise) {
  return normalise == Normalise::sparsemax || normalise == Normalise::entmax15;
}

/// A call on value vectors as they are, or of no columns: with these options and this function.
using WeightedCall =
    std::function<Tensor(const AttentionOptions& options, const ScoreMod& weight, bool values)>;

/// The call with options.normalise, made of weighted calls. `who` names it. `begins`: of packed rows, where those
/// of a sample begin. options.lse receives the thresholds.
Tensor attention_above_thresholds(const char* who, const AttentionOptions& options, const ScoreMod& score_mod,
                                  const std::vector<int64_t>& begins, const WeightedCall& call);

}  // namespace multihead::detail
