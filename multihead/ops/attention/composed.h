// Attention by its definition: what the fused op must equal.
#pragma once

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

/// attention() as plain loops over the whole [Tq, Tk] matrix in f64, each rule in its place in the
/// pipeline: documentation that runs, and the oracle of the tests. Masks are evaluated pair by pair from
/// their definitions, sharing nothing with the fused path but the dropout's random numbers.
///
/// Same arguments, shapes, dtypes, options (Layout::bhtd only) and gradients as attention(); of a capture it
/// fills in `weights` for all heads and rows. Memory O(B · H · Tq · Tk).
Tensor attention_composed(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

}  // namespace multihead
