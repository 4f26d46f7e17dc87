// An encoder with a head for tokens: names, places, parts of speech in a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/text/enum_words.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

/// How tokens are grouped into entities, with transformers' names. A label B-X begins an entity X, and
/// consecutive labels I-X (or X) continue it.
enum class Aggregation {
  none,     ///< every token alone
  simple,   ///< tokens of one label in a row are one entity
  first,    ///< a word has the label of its first token …
  average,  ///< … the most probable of its tokens' mean probabilities …
  max,      ///< … or that of its surest token; then as simple
};
constexpr auto enum_words(Aggregation) {
  return std::to_array<std::string_view>({"none", "simple", "first", "average", "max"});
}

struct Entity {
  std::string label;    ///< but for Aggregation::none what follows its first hyphen, as of B-X
  float score = 0;      ///< the probability, of several words or tokens their mean
  text::Offsets place;  ///< the bytes of the text
};

struct EntityOptions {
  Aggregation aggregation = Aggregation::simple;
  /// Words of `first`, `average` and `max` end at spaces alone, and an entity takes them whole, as data in columns have
  /// it; else where transformers' pipeline ends them.
  bool words_end_at_spaces = false;
  std::vector<std::string> ignored = {"O"};  ///< labels that are not entities
  int64_t max_length = 0;                    ///< longer texts are cut; 0: the folder's limit
  /// Or read in windows that have this many tokens in common; of entities that overlap, the one with
  /// most characters counts, of equally long ones the surest. 0: cut.
  int64_t stride = 0;
  int64_t batch_tokens = 1024;  ///< tokens computed at a time: bounds the memory, changes no bit
  /// Called between batches with the texts done and all of them; may throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// A tokenizer and an encoder with a token classification head. A text's entities are the same in any batch.
class TokenClassifier {
 public:
  /// Reads an encoder's folder (…ForTokenClassification). Throws IoError, FormatError; ValueError for another
  /// head.
  static TokenClassifier load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);
  /// max_length: tokens of a text that are read; 0: the model's context.
  TokenClassifier(models::Encoder encoder, text::Tokenizer tokenizer, int64_t max_length = 0);

  /// The entities of each text, in its order, as transformers' token-classification pipeline gives them.
  std::vector<std::vector<Entity>> entities(std::span<const std::string> texts,
                                            const EntityOptions& options = {}) const;

  /// The folder's name of a label, or LABEL_i.
  std::string label(int64_t index) const;
  const models::Encoder& encoder() const { return encoder_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::vector<Entity> entities_of(const text::Encoding& encoding, const std::string& text,
                                  const float* scores, const EntityOptions& options) const;

  models::Encoder encoder_;
  text::Tokenizer tokenizer_;
  int64_t max_length_ = 0;
};

}  // namespace multihead::embed
