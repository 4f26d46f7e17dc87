// Encoders in the GGUF format. Private to models/.
#pragma once

#include <optional>
#include <string>

#include "multihead/models/encoder.h"

namespace multihead::models::detail {

/// Whether a GGUF file holds an encoder: bert, nomic-bert, nomic-bert-moe, jina-bert-v2, modern-bert, t5encoder.
/// Throws IoError, FormatError.
bool is_gguf_encoder(const std::string& path);

/// Without a head; weights as load_gguf() has them. Everything in the file that would change the model is either
/// followed or refused by name. Throws IoError, FormatError, MemoryError.
Encoder load_gguf_encoder(const std::string& path, bool as_f32 = false,
                          std::optional<nn::WeightDtype> packed_as = {});

}  // namespace multihead::models::detail
