// Language models in the GGUF format.
#pragma once

#include <string>

#include "multihead/models/language_model.h"

namespace multihead::models {

/// Whether a model's path names a GGUF file and not a folder: by its extension, .gguf.
bool is_gguf(const std::string& path);

/// Decodes the weights to f32. Architectures: llama, qwen2, qwen3. Everything in the file that would change the
/// model is either followed or refused by name. Throws IoError, FormatError, MemoryError.
LanguageModel load_gguf(const std::string& path);

}  // namespace multihead::models
