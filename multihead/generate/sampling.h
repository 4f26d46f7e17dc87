// Choosing the next token from its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace multihead {

/// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p. The defaults sample from the
/// model's own distribution; temperature 0 takes the most likely token.
struct SamplingOptions {
  double temperature = 1;
  int64_t top_k = 0;              ///< keep the k most likely; 0: all
  double top_p = 1;               ///< keep the fewest whose probabilities reach p (Holtzman et al. 2020)
  double min_p = 0;               ///< keep those with at least min_p of the largest probability
  double repetition_penalty = 1;  ///< > 1: tokens seen before get less likely (Keskar et al. 2019)
};

/// Throws ValueError naming the option.
void check(const SamplingOptions& options);

struct Candidate {
  int32_t token = 0;
  double probability = 0;
};

/// What is left to choose from, most likely first (ties: smaller token first), probabilities summing to one.
/// `history`: tokens that the repetition penalty counts. Throws ValueError if no logit is finite.
std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> history,
                                  const SamplingOptions& options);

/// One of the candidates, by a uniform number in [0, 1).
int32_t sample(std::span<const float> logits, std::span<const int32_t> history,
               const SamplingOptions& options, double uniform);

}  // namespace multihead
