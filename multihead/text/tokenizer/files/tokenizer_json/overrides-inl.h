// Settings of tokenizer_config.json that override the tokenizer.json beside it. Private to text/.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {

/// The tokenizer.json as transformers uses it in this folder, or nothing if that is the file itself, which
/// `model` was read from. Classes like BERT's and GPT-2's make their steps of tokenizer_config.json alone;
/// special tokens that only that file names are added at the end of the vocabulary. `model_type` is that of
/// config.json; empty: there is none. Throws FormatError.
std::optional<std::string> overridden_json(const Tokenizer::Model& model, const Json& config,
                                           const std::string& model_type);

/// Whether the class, if there is one, reads a bare vocab.txt as BERT's does.
bool class_reads_word_pieces(const Json& config);
/// Whether ids come with the number of their text where tokenizer_config.json has no model_input_names: by the class.
/// Bare files do.
bool class_gives_types(const Json& config, const std::string& model_type);

/// A folder's JSON file; an empty object: there is none. Throws IoError, FormatError.
Json json_in(const std::filesystem::path& folder, const char* file);
/// "extra_ids" of a tokenizer_config.json. Throws FormatError.
int64_t extra_ids_of(const Json& config, int64_t missing);
/// "model_type" of a folder's config.json; empty: there is none. Throws IoError, FormatError.
std::string model_type_of(const std::filesystem::path& folder);

}  // namespace multihead::text
