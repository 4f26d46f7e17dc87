// Encoders in the GGUF format. Private to models/.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "multihead/io/gguf.h"
#include "multihead/models/encoder.h"

namespace multihead::models::detail {

/// Whether a GGUF file holds an encoder: bert, nomic-bert, nomic-bert-moe, jina-bert-v2, modern-bert, t5encoder.
/// Throws IoError, FormatError.
bool is_gguf_encoder(const std::string& path);

/// Its weights in f32, without a head. Everything in the file that would change the model is either followed
/// or refused by name. Throws IoError, FormatError, MemoryError.
Encoder load_gguf_encoder(const std::string& path);

/// Throws FormatError that lists the tensors that are missing, of another shape, or not the model's; `views`
/// have the file's names; tensors in `others` belong to those who load the file.
void check_gguf_fit(const io::GgufFile& file, const std::vector<std::pair<std::string, Tensor>>& views,
                    const std::set<std::string>& others = {});

}  // namespace multihead::models::detail
