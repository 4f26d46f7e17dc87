// Language models in the GGUF format.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "multihead/io/gguf.h"
#include "multihead/models/language_model.h"

namespace multihead::models {

/// Whether a model's path names a GGUF file and not a folder: io::is_gguf_file().
bool is_gguf(const std::string& path);

/// Quantised matrices stay so (LanguageModel::pack_weights): types with BlockFormat::packed_as without
/// conversion, others as q8; as_f32 decodes them, and with `packed_as` they are packed as that. Architectures:
/// llama, qwen2, qwen3, gemma-embedding (its matrices after the pooling are SentenceEncoder's). Everything in the file that would change the model is either followed or refused by
/// name. Throws IoError, FormatError, MemoryError.
LanguageModel load_gguf(const std::string& path, bool as_f32 = false,
                        std::optional<nn::WeightDtype> packed_as = {});

/// Writes matrices as `type` (io::writable_gguf_type(); the embedding and the output layer as Q8_0 if that
/// has four bits), vectors as F32; `vocabulary` is text::gguf_vocabulary(). Throws ValueError (a model that
/// the format's llama, qwen2 or qwen3 do not express), IoError.
void save_gguf(LanguageModel& model, const std::string& path, std::string_view type,
               const io::GgufMetadata& vocabulary);

}  // namespace multihead::models
