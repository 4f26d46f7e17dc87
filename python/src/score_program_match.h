// Programs that mean what the library has built in: those run fused instead of instruction by instruction.
#pragma once

#include <cstdint>
#include <optional>

#include "multihead/ops/attention_options.h"
#include "python/src/score_program.h"

namespace multihead::python {

/// query >= key, a bound on query - key, and conjunctions of them, as causal() and window().
std::optional<Mask> match_mask(const ScoreProgram& program);

struct ScoreSizes {
  int64_t heads = 0, queries = 0, keys = 0;
  Dtype dtype = Dtype::f32;  ///< of the arithmetic
};

/// Writes c·tanh(score / c), with or without - slope[head]·(query - key) behind it, as softcap and
/// alibi_slopes into `options`, whose mask is already there; false if the program is anything else.
bool match_score(const ScoreProgram& program, const ScoreSizes& sizes, AttentionOptions& options);

}  // namespace multihead::python
