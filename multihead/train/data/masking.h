// Masking: some words of a text are hidden, and a masked language model predicts them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::train {

struct MaskOptions {
  double share = 0.15;      ///< of the tokens that are hidden; at least one is
  bool whole_words = true;  ///< all tokens of a word or none
};

/// A text with hidden tokens.
struct MaskedText {
  std::vector<int32_t> tokens;   ///< as the model sees them
  std::vector<int64_t> places;   ///< of the hidden ones, ascending
  std::vector<int64_t> targets;  ///< what they were
};

/// Hides words: of the chosen tokens 80 % become the mask, 10 % a random token, 10 % stay (Devlin et al.
/// 2019). Special tokens are never chosen but for unknown words.
class Masker {
 public:
  /// Throws ValueError if the tokenizer has no token [MASK] or <mask>.
  Masker(const text::Tokenizer& tokenizer, const MaskOptions& options);
  /// A function of its arguments only.
  MaskedText operator()(std::span<const int32_t> tokens, RandomStream stream) const;

 private:
  std::vector<std::vector<int64_t>> words(std::span<const int32_t> tokens) const;

  MaskOptions options_;
  int32_t mask_ = 0;
  int64_t vocab_size_ = 0;
  std::vector<uint8_t> is_hidden_;  // tokens that may be
  std::vector<std::string> texts_;  // of the tokens
};

}  // namespace multihead::train
