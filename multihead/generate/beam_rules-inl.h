// Validating the options of a beam search and applying them to the next token. Internal to generate.
#pragma once

#include <span>

#include "multihead/generate/beam_search.h"
#include "multihead/generate/token_rules-inl.h"

namespace multihead::detail {

/// Throws ValueError naming the first invalid option.
void check_beam_options(const BeamOptions& options, size_t sentences);

/// Hypotheses per sentence that must finish; effectively all with unbounded patience.
size_t hypotheses_wanted(const BeamOptions& options);

/// Whether repetition_penalty changes logits, as it does for one beam and for samples in transformers, rather than
/// log-probabilities.
inline bool penalizes_logits(const BeamOptions& o) {
  return (o.beam_size == 1 || o.sample) && o.repetition_penalty != 1;
}

/// The state of a hypothesis.
struct NextToken {
  std::span<const int32_t> history;  ///< the tokens so far, behind the decoder's start token
  std::span<const int32_t> prefix;   ///< required first tokens
  int32_t eos;
  bool last;  ///< only the end token fits
};

/// Applies the options to the log-probabilities [V] of the next token.
void apply_rules(const BeamOptions& options, const NextToken& next, std::span<float> scores);

}  // namespace multihead::detail
