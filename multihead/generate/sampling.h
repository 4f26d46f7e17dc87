// Sampling the next token from its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace multihead {

/// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p. The defaults sample from the
/// model's own distribution; temperature 0 is greedy.
struct SamplingOptions {
  double temperature = 1;
  int64_t top_k = 0;              ///< keep the k most probable tokens; 0: all
  double top_p = 1;               ///< keep the smallest set with total probability p (Holtzman et al. 2020)
  double min_p = 0;               ///< drop tokens below this fraction of the top probability
  double repetition_penalty = 1;  ///< > 1 penalises repeated tokens (Keskar et al. 2019)
};

/// Throws ValueError naming the option.
void check(const SamplingOptions& options);

struct Candidate {
  int32_t token = 0;
  double probability = 0;
};

/// The remaining candidates, most probable first (ties: smaller token first), with probabilities that sum to
/// one. `history`: tokens subject to the repetition penalty. Throws ValueError if no logit is finite.
std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> history,
                                  const SamplingOptions& options);

/// Samples a candidate with a uniform number in [0, 1).
int32_t sample(std::span<const float> logits, std::span<const int32_t> history,
               const SamplingOptions& options, double uniform);

}  // namespace multihead
