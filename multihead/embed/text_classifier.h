// Encoders with a head: text classification, scores of text pairs, masked word prediction.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

using TextPair = std::pair<std::string, std::string>;

struct ClassifyOptions {
  int64_t max_length = 0;       ///< longer texts are cut, of a pair the longer one; 0: as many as
                                ///< TextClassifier::max_length()
  int64_t batch_tokens = 1024;  ///< tokens computed at a time: bounds the memory, changes no bit
  /// Called between batches with the texts done and all of them; may throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// A tokenizer and an encoder with a head for sequences. The logits of a text have the same bits in any
/// batch.
class TextClassifier {
 public:
  /// Reads an encoder's folder (…ForSequenceClassification), or one of sentence-transformers whose last module is a
  /// Dense with a logit for each of config.json's labels. Throws IoError, FormatError; ValueError for another
  /// head.
  static TextClassifier load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);
  /// max_length: tokens of a text that are read; 0: the model's context.
  TextClassifier(models::Encoder encoder, text::Tokenizer tokenizer, int64_t max_length = 0);

  /// n texts, or pairs in one sequence -> [n, num_labels()] f32. Pairs begin with the default prompt of a
  /// CrossEncoder's folder, as in its predict().
  Tensor logits(std::span<const std::string> texts, const ClassifyOptions& options = {}) const;
  Tensor logits(std::span<const TextPair> pairs, const ClassifyOptions& options = {}) const;

  /// Scores of logits [n, num_labels()] as transformers' text-classification has them: label_probabilities(),
  /// or the logits themselves, by the folder's problem_type.
  Tensor scores(const Tensor& logits) const;

  /// Whether rank's score is the logistic function of a logit: of a single label, unless the folder's
  /// activation_fn (sentence-transformers) says otherwise.
  bool has_sigmoid() const { return sigmoid_.value_or(num_labels() == 1); }
  /// Tokens of a pair: as many as the folder, its tokenizer and the model allow; of a single text as the
  /// latter two.
  int64_t max_length() const { return max_length_; }
  /// Tokens of a single text that are read.
  int64_t text_length() const { return text_length_; }
  /// Whether texts may come in pairs: not to a Dense module, which reads the vectors of single ones.
  bool reads_pairs() const { return !embedder_; }
  /// A text or a pair as logits() reads it, behind the folder's prompt, cut to max_length tokens; 0: whole.
  text::Encoding tokens(const std::string& text, int64_t max_length) const;
  text::Encoding tokens(const TextPair& pair, int64_t max_length) const;
  int64_t num_labels() const { return num_labels_; }
  models::ProblemType problem_type() const { return problem_type_; }
  /// The folder's name of a label, or LABEL_i.
  std::string label(int64_t index) const;
  const models::Encoder& encoder() const { return encoder_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  TextClassifier(SentenceEncoder embedder, const models::EncoderConfig& labels);
  Tensor logits(int64_t count, int64_t limit, const ClassifyOptions& options,
                const std::function<text::Encoding(size_t, int64_t)>& encode) const;

  models::Encoder encoder_;
  text::Tokenizer tokenizer_;
  int64_t max_length_ = 0;
  int64_t text_length_ = 0;  // of single texts: sentence_bert_config.json is about pairs
  std::optional<bool> sigmoid_;
  std::string prompt_;                       // of pairs
  std::optional<SentenceEncoder> embedder_;  // whose vectors are the logits
  int64_t num_labels_ = 0;
  models::ProblemType problem_type_ = models::ProblemType::unstated;
  std::vector<std::string> labels_;
};

/// The default prompt of a folder of sentence-transformers' CrossEncoder, which the first text of every pair begins
/// with; empty: there is none. Throws IoError, FormatError.
std::string pair_prompt(const std::string& folder);
/// Whether TextClassifier::load() reads the folder.
bool is_text_classifier(const std::string& folder);
/// Whether a folder of sentence-transformers ends with a Dense module whose vectors are the logits of
/// config.json's labels.
bool has_linear_head(const std::string& folder);

/// The softmax of logits [n, labels]; the logistic function of each, of a single label or of labels that
/// do not exclude each other; the logits, of a regression.
Tensor label_probabilities(const Tensor& logits,
                           models::ProblemType problem_type = models::ProblemType::unstated);

struct MaskGuess {
  int32_t token = 0;
  float probability = 0;
  std::string word;  ///< the token's text
  std::string text;  ///< the whole, with it in the mask's place
};
/// The `count` most probable tokens for every mask ([MASK], <mask>) of a text, best first. Throws ValueError: a
/// model without masked_lm head, a tokenizer without masks, a text without one or with more tokens than the
/// model's context.
std::vector<std::vector<MaskGuess>> fill_mask(const models::Encoder& encoder,
                                              const text::Tokenizer& tokenizer, const std::string& text,
                                              int64_t count = 5);

}  // namespace multihead::embed
