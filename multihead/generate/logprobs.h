// How probable a model finds tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace multihead {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  ///< natural logarithm of its probability
};

/// A token and the likeliest ones in its place.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< most probable first; of equal ones the smaller token first
};

/// From logits [V], in one fixed order: equal logits give equal bits. Throws ValueError (a token outside the
/// vocabulary; top < 0; no finite logit).
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int64_t top = 0);

}  // namespace multihead
