// Shared by the tasks of encoders: examples as tokens, the model they begin with, its files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/io/checkpoint.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/run_folder.h"
#include "multihead/train/tasks/encoder_settings.h"

namespace multihead::train {

using Encodings = std::vector<text::Encoding>;
/// Examples, concatenated.
models::TokenRows token_rows(const Encodings& examples, const std::vector<int64_t>& rows);

/// Texts, or pairs in one sequence, cut at `length` tokens; encoded on many threads.
Encodings encode_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       int64_t length);
Encodings encode_pair_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& first,
                            const std::vector<std::string>& second, int64_t length, bool has_types);

/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(EncoderSettings& settings, const std::string& init);
/// models::with_weights(), the random ones of the seed.
models::Encoder encoder_from(const models::EncoderConfig& config, models::Encoder from, int64_t seed,
                             std::vector<std::string>* fresh = nullptr);
/// Parameters other than these require no gradient any more.
void freeze_all_but(models::Encoder& model, const std::vector<std::string>& names);

/// config.json, model.safetensors and the tokenizer's files; tokenizer_config.json as `init` has it but for
/// model_max_length, the tokens that were read of a text; 0: as it is.
void save_encoder_files(models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& init,
                        int64_t length, io::CheckpointContents& contents);

/// The same of a folder of sentence-transformers, besides the modules that have folders of their own, …
void save_sentence_files(embed::SentenceEncoder& encoder, const std::string& init, int64_t length,
                         io::CheckpointContents& contents);
/// … which these write, and delete of the run being replaced. The latter refuses foreign ones before anything is
/// written.
void write_module_folders(const embed::SentenceEncoder& encoder, const RunFolder& folder);
void remove_module_folders(const embed::SentenceEncoder& encoder, const RunFolder& folder);

}  // namespace multihead::train
