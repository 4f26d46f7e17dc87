// Texts to weights of the vocabulary's tokens (SPLADE).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "multihead/embed/nearest.h"
#include "multihead/embed/prompts.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

/// How the logits of a text's tokens become one weight for each token of the vocabulary.
struct SpladePooling {
  bool sums = false;  ///< adds those of all tokens (SPLADE); else takes the largest (SPLADE v2 and later)
  bool logs_twice = false;  ///< log(1 + log(1 + relu(logit))), else log(1 + relu(logit))
};

/// A tokenizer, an encoder with a masked_lm head and the pooling of its logits. A text's weights have the
/// same bits in any batch, on any number of threads. Source: Formal, Piwowarski & Clinchant 2021; Formal et
/// al. 2021.
class SparseEncoder {
 public:
  /// Reads a folder of sentence-transformers (modules.json: Transformer, SpladePooling) or the folder of a
  /// …ForMaskedLM, of whose weights the largest are taken. Its weights are packed (TextModel::load). Throws
  /// IoError, FormatError; ValueError (no masked_lm head).
  static SparseEncoder load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);

  /// max_length: tokens of a text that are read; 0: the model's context.
  SparseEncoder(models::Encoder encoder, text::Tokenizer tokenizer, SpladePooling pooling = {},
                int64_t max_length = 0);

  /// n texts -> n rows of dim() columns, with the `max_active` largest weights of each (of equal ones the
  /// first); 0: as many as the folder says, else all. Throws ValueError (an unknown prompt; normalize or
  /// truncate_dim).
  SparseRows encode(std::span<const std::string> texts, const EncodeTextOptions& options = {},
                    int64_t max_active = 0) const;

  int64_t dim() const { return encoder_.config().vocab_size; }
  int64_t max_length() const { return max_length_; }
  /// 0: no limit.
  int64_t max_active() const { return max_active_; }
  const Prompts& prompts() const { return prompts_; }
  /// How the folder wants weights compared; dot where it does not say. Throws ValueError (one that we do not
  /// have).
  Similarity similarity() const { return prompts_.compared_by(Similarity::dot); }
  const models::Encoder& encoder() const { return encoder_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void read_pooling(const std::string& folder);
  void pool(const Tensor& features, float* weights) const;

  models::Encoder encoder_;
  text::Tokenizer tokenizer_;
  SpladePooling pooling_;
  int64_t max_length_ = 0, max_active_ = 0;
  Prompts prompts_;
};

}  // namespace multihead::embed
