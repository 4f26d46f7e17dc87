// Attention composed of ops: what the fused op must equal.
#pragma once

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

/// attention() as a composition of matmul, softmax and elementwise ops on the whole [Tq, Tk] matrix in f64:
/// documentation that runs, and the oracle of the tests. Its gradients are those of the ops. Masks are
/// evaluated pair by pair from their definitions, sharing nothing with the fused path but the dropout's random
/// numbers.
///
/// Same arguments, shapes, dtypes, options (Layout::bhtd only, neither sparsemax nor entmax15) and gradients as
/// attention(); of a capture it fills in `weights` for all heads and rows. Not finite keys and values reach rows that may not see them, as
/// 0 · NaN is NaN in a product. Memory O(B · H · Tq · Tk).
Tensor attention_composed(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

}  // namespace multihead
