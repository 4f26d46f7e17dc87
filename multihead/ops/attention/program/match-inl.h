// Programs that mean what the library has built in: those run fused instead of instruction by instruction.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {

/// A mask in parts: query >= key and bounds on query - key as causal() and window(), and the conditions of
/// the conjunction that are nothing of the kind. Positions lie on `diagonal`, rows on that which starts at
/// key 0.
struct MatchedMask {
  Mask mask;
  std::vector<int32_t> rest;  ///< registers
};
MatchedMask match_mask(const ScoreProgram& program, const Diagonal& diagonal);

struct ScoreSizes {
  int64_t heads = 0, queries = 0, keys = 0;
  Dtype dtype = Dtype::f32;  ///< of the arithmetic
};

/// Writes c·tanh(score / c), with or without - slope[head]·(query - key) after it, as softcap and
/// alibi_slopes into `options`, whose mask is already there; false if the program is anything else. Only for
/// rows: where positions lie is known when the mask is bound.
bool match_score(const ScoreProgram& program, const ScoreSizes& sizes, AttentionOptions& options);

}  // namespace multihead::program
