// The options of a beam search: do they make sense, and what do they say about the next token. Internal to
// generate.
#pragma once

#include <limits>
#include <span>

#include "multihead/generate/beam_search.h"

namespace multihead::detail {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Throws ValueError naming the first option that makes no sense.
void check_beam_options(const BeamOptions& options, size_t sentences);

/// How many hypotheses of a sentence must end; as good as all of them where the patience has no end.
size_t hypotheses_wanted(const BeamOptions& options);

/// Where a hypothesis stands.
struct NextToken {
  std::span<const int32_t> tokens;  ///< so far
  std::span<const int32_t> prefix;  ///< what it must begin with
  int32_t eos;
  bool last;  ///< there is room for the end only
};

/// Applies the options to the log-probabilities [V] of the token that comes next.
void apply_rules(const BeamOptions& options, const NextToken& next, std::span<float> scores);

}  // namespace multihead::detail
