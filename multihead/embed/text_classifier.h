// Encoders with a head: text classification, scores of text pairs, masked word prediction.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer.h"

namespace multihead::embed {

using TextPair = std::pair<std::string, std::string>;

struct ClassifyOptions {
  int64_t max_length = 0;       ///< longer texts are cut, of a pair the longer one; 0: the model's limit
  int64_t batch_tokens = 1024;  ///< tokens computed at a time: bounds the memory, changes no bit
  /// Called between batches with the texts done and all of them; may throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// A tokenizer and an encoder with a head for sequences. The logits of a text have the same bits in whatever
/// company.
class TextClassifier {
 public:
  /// Reads an encoder's folder (…ForSequenceClassification). Throws IoError, FormatError; ValueError for
  /// another head.
  static TextClassifier load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);
  TextClassifier(models::Encoder encoder, text::Tokenizer tokenizer);

  /// n texts, or pairs in one sequence -> [n, num_labels()] f32.
  Tensor logits(std::span<const std::string> texts, const ClassifyOptions& options = {}) const;
  Tensor logits(std::span<const TextPair> pairs, const ClassifyOptions& options = {}) const;

  int64_t num_labels() const { return encoder_.config().num_labels; }
  /// The folder's name of a label, or LABEL_i.
  std::string label(int64_t index) const;
  const models::Encoder& encoder() const { return encoder_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  Tensor logits(int64_t count, const ClassifyOptions& options,
                const std::function<text::Encoding(int64_t, size_t)>& encode) const;

  models::Encoder encoder_;
  text::Tokenizer tokenizer_;
};

/// Of logits [n, labels]: their softmax, of a single label the logistic function.
Tensor label_probabilities(const Tensor& logits);

struct MaskGuess {
  int32_t token = 0;
  float probability = 0;
  std::string word;  ///< the token's text
  std::string text;  ///< the whole, with it in the mask's place
};
/// The `count` likeliest tokens for every mask ([MASK], <mask>) of a text, best first. Throws ValueError: a
/// model without masked_lm head, a tokenizer without masks, a text without one or with more tokens than the
/// model's context.
std::vector<std::vector<MaskGuess>> fill_mask(const models::Encoder& encoder,
                                              const text::Tokenizer& tokenizer, const std::string& text,
                                              int64_t count = 5);

}  // namespace multihead::embed
