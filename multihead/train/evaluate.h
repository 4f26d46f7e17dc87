// Evaluation of language models on a text.
#pragma once

#include <cstdint>

#include "multihead/core/text/json.h"
#include "multihead/models/language_model.h"
#include "multihead/text/corpus/token_file.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/parallel/sharing.h"

namespace multihead::train {

struct EvaluateOptions {
  int64_t context = 0;  ///< tokens per window; 0: the model's context
  int64_t batch = 16;   ///< windows per batch
  int64_t windows = 0;  ///< this many, evenly spaced over the text; 0: all
  /// Tokens from one window's begin to the next one's. Less than `context`: windows overlap, and each token
  /// is predicted once, from at least context - stride before it. 0: `context`.
  int64_t stride = 0;
  Sharing sharing = {};
};

/// A text cut into adjacent windows; every token but the text's first is predicted from the preceding ones in
/// its window.
struct TextLoss {
  double nats = 0;     ///< sum of -log p
  int64_t tokens = 0;  ///< predicted tokens
  int64_t bytes = 0;   ///< of the predicted tokens
  int64_t characters = 0;

  double loss() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
  double bits_per_byte() const;
  double nats_per_character() const { return nats / static_cast<double>(characters); }
};

Json to_json(const TextLoss& loss);

/// Throws FormatError unless there are at least two tokens, ValueError (options; a token outside the
/// vocabulary). Bytes and characters are counted if a tokenizer is given.
TextLoss evaluate(const models::LanguageModel& model, const text::TokenView& tokens,
                  const EvaluateOptions& options = {}, const text::Tokenizer* tokenizer = nullptr);

}  // namespace multihead::train
