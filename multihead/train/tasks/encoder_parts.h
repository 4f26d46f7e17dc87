// What the runs of encoders have in common: examples, their order, the model they begin with, its files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/io/checkpoint.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/tasks/encoder_settings.h"

namespace multihead::train {

/// The `size` examples of the index-th batch of a run over `count` examples. Every epoch visits all of them
/// in an order of its own; a function of the arguments only.
std::vector<int64_t> batch_rows(int64_t index, int64_t size, int64_t count, uint64_t seed);
/// `wanted` of `count` places, evenly spread; 0: all.
std::vector<int64_t> spread_rows(int64_t count, int64_t wanted);

/// The index-th part of `size` rows, and the number of parts.
std::vector<int64_t> part_of(const std::vector<int64_t>& rows, int64_t index, int64_t size);
int64_t parts_of(const std::vector<int64_t>& rows, int64_t size);

using Encodings = std::vector<text::Encoding>;
/// Examples, concatenated.
models::TokenRows token_rows(const Encodings& examples, const std::vector<int64_t>& rows);

/// Texts, or pairs in one sequence, cut at `length` tokens; encoded on many threads.
Encodings encode_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       int64_t length);
Encodings encode_pair_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& first,
                            const std::vector<std::string>& second, int64_t length, bool has_types);

/// models::with_weights(), the random ones of the seed.
models::Encoder encoder_from(const models::EncoderConfig& config, models::Encoder from, int64_t seed,
                             std::vector<std::string>* fresh = nullptr);
/// Parameters other than these require no gradient any more.
void freeze_all_but(models::Encoder& model, const std::vector<std::string>& names);

/// config.json, model.safetensors and the tokenizer's files; tokenizer_config.json as `init` has it.
void save_encoder_files(models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& init,
                        io::CheckpointContents& contents);

}  // namespace multihead::train
