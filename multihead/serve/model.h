// A model that is served, by what it can do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/generate/defaults.h"
#include "multihead/models/generation_config.h"

namespace multihead::serve {

/// A language model with its tokenizer and the defaults of its folder.
struct Writer : LoadedModel {
  models::GenerationConfig defaults;
};

struct Model {
  using Any = std::variant<Writer, embed::SentenceEncoder, embed::TextClassifier>;

  std::string name;  ///< by which requests ask for it
  std::string path;
  int64_t created = 0;  ///< seconds since 1970 at which it was loaded
  Any any;

  const text::Tokenizer& tokenizer() const;
  /// "language model", "encoder", "classifier".
  const char* kind() const;
};

/// A model that is in memory: its weights are shared.
Model named_model(const std::string& name, Model::Any any, const std::string& path = "");

/// Reads a folder or a GGUF file. `weights`: what they are packed as; none: as they are stored (encoders: f32).
/// Throws IoError, FormatError, ValueError (a model that cannot be served).
Model load_model(const std::string& name, const std::string& path,
                 std::optional<nn::WeightDtype> weights = {});

}  // namespace multihead::serve
