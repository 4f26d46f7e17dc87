// Text generation with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "multihead/generate/constraint/constraint.h"
#include "multihead/generate/logprobs.h"
#include "multihead/generate/sampling.h"
#include "multihead/models/language_model.h"

namespace multihead {

/// Behaviour when a sequence fills the model's context.
/// (Does not apply to models with a window and relative positions.)
enum class Overflow {
  slide,  ///< reprocess the last half of the context from position 0 and continue
  error,  ///< ValueError before the first token, if prompt and new tokens cannot fit
};

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  SamplingOptions sampling = {};
  uint64_t seed = 0;                      ///< row r has its own stream, so rows do not depend on the batch
  std::vector<int32_t> stop_tokens = {};  ///< end a row; not part of the result
  int64_t no_repeat_ngram = 0;            ///< n: no n-gram occurs twice in prompt and new tokens; 0: off
  int64_t min_new_tokens = 0;             ///< stop_tokens do not come earlier
  std::vector<std::vector<int32_t>> suppress = {};  ///< forbidden sequences; of one token: it never comes
  /// The first new token, and the one that max_new_tokens ends with (forced_eos_token_id of transformers).
  std::optional<int32_t> first_token = {}, last_token = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};  ///< added to the logits of tokens before sampling
  /// Subtracted from the logits of tokens that are among the new ones: for each time, and once.
  double frequency_penalty = 0, presence_penalty = 0;
  /// What the text must be: constraint.h. Not together with first_token, last_token and min_new_tokens.
  std::optional<Constraint> constraint = {};
  Overflow overflow = Overflow::slide;
  std::optional<Dtype> cache_dtype = {};  ///< of keys and values: the model's, bf16, or nn::kInt8Cache
  /// Speculative decoding: drafts at most `most` next tokens; see draft.h for implementations. One step
  /// verifies all draft tokens up to the first wrong one, so the result is the same as without them, seed by
  /// seed. Rings read one token at a time.
  std::function<std::vector<int32_t>(std::span<const int32_t> text, int64_t most)> draft = {};
  int64_t draft_tokens = 4;  ///< most of them in a step
  /// Called with every new token; returning false ends the row.
  std::function<bool(int64_t row, int32_t token)> on_token = {};
  /// Called before on_token with the token's log-probability by the model itself, before any of the options
  /// above, and with the `top_logprobs` most probable ones.
  std::function<void(int64_t row, const TokenLogprobs& logprobs)> on_logprobs = {};
  int64_t top_logprobs = 0;
  /// Called before all of that for each token of the prompt but the first, in order, likewise. The whole prompt is then
  /// read, whatever is cached, and must fit the context; max_new_tokens may be 0.
  std::function<void(int64_t row, const TokenLogprobs& logprobs)> on_prompt_logprobs = {};
};

/// The state that generate() allocates for the longest prompt; nn::decode_state_bytes() gives its size. A
/// model with a window gets a ring if that is smaller.
nn::DecodeStateOptions plan_generate(const models::LanguageModel& model, int64_t rows, int64_t longest_prompt,
                                     const GenerateOptions& options = {});

/// Continues every prompt; rows are decoded together with the same results as alone. A prompt longer than the
/// context is truncated to the context's last half (slide).
///
/// Returns   the new tokens of every row
/// Throws    ValueError (empty prompt, token outside the vocabulary, options)
std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options = {});

/// The log-probabilities of every token of these texts but the first, by what comes before it, with the `top` likeliest
/// ones in its place. The same bits as on_prompt_logprobs gives alone or among others. Throws ValueError (empty texts,
/// tokens outside the vocabulary, texts longer than the context).
std::vector<std::vector<TokenLogprobs>> prompt_logprobs(const models::LanguageModel& model,
                                                        const std::vector<std::vector<int32_t>>& texts,
                                                        int64_t top = 0);

}  // namespace multihead
