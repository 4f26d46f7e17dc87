// Turns a text's tokens into vectors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "multihead/models/encoder.h"
#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::embed {

/// An encoder; a decoder, whose tokens see no later ones (Qwen3-Embedding); or the encoder of an
/// encoder-decoder model.
class TextModel {
 public:
  using Any = std::variant<models::Encoder, models::LanguageModel, models::Seq2Seq>;

  TextModel(Any model);
  TextModel(models::Encoder model);
  /// As config.json or a GGUF file says; `weights`, `packed` and `task` as of models::load_encoder().
  /// Throws IoError, FormatError, ValueError (an encoder-decoder model, of which only T5's can be packed).
  static TextModel load(const std::string& folder, std::optional<nn::WeightDtype> weights = {},
                        bool packed = true, const std::string& task = "");

  /// The features of every token, [N, embed_dim]. Dropout is active if and only if `rng` is given.
  Tensor features(const models::TokenRows& rows, Rng* rng = nullptr) const;

  /// The embeddings and what each layer makes of them, the last one's as features() has it:
  /// transformers' hidden states, num_layers() + 1 of [N, embed_dim]. Throws ValueError (an encoder-decoder
  /// model).
  std::vector<Tensor> states(const models::TokenRows& rows, Rng* rng = nullptr) const;

  int64_t num_layers() const;
  int64_t context() const;
  int64_t embed_dim() const;
  int64_t vocab_size() const;
  const Any& any() const { return model_; }
  /// Throws ValueError if it is none.
  const models::Encoder& encoder() const;
  models::Encoder& encoder();
  void visit(nn::Visitor& visitor);

 private:
  Any model_;
};

}  // namespace multihead::embed
