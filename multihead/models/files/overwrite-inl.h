// Which models may replace the one in a folder. Internal to the library and its bindings.
#pragma once

#include <string>

#include "multihead/models/encoder.h"
#include "multihead/models/image_encoder.h"
#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::models::detail {

/// Throws ValueError if the folder holds a model of ours with another configuration: the tokenizer, prompts
/// and pooling that lie beside it would stay. What is not ours is left to the saving itself.
void refuse_another_model(const LanguageModelConfig& config, const std::string& folder);
void refuse_another_model(const Seq2SeqConfig& config, const std::string& folder);
void refuse_another_model(const EncoderConfig& config, const std::string& folder);
void refuse_another_model(const ImageEncoderConfig& config, const std::string& folder);

}  // namespace multihead::models::detail
