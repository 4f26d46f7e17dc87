// Encoder-decoder models as Hugging Face directories: config.json, model.safetensors (and tokenizer.json
// beside them).
#pragma once

#include <string>

#include "multihead/core/json.h"
#include "multihead/models/seq2seq.h"
#include "multihead/models/weight_map.h"

namespace multihead::models {

/// Whether transformers' MarianMTModel can express this configuration: sinusoids in halves, layer norm behind
/// each sub-layer (eps 1e-5), biases everywhere (an output bias that is missing is saved as zeros).
/// Everything else is saved under our own names.
bool is_marian(const Seq2SeqConfig& config);

/// config.json. What Marian has no field for goes under "multihead".
Json config_to_json(const Seq2SeqConfig& config);
/// Throws FormatError naming file and field; also for a field that is not known.
Seq2SeqConfig seq2seq_config_from_json(const Json& json, const std::string& where);

/// Whether the folder's config.json speaks of an encoder-decoder model. Throws IoError, FormatError.
bool is_seq2seq_folder(const std::string& folder);

WeightMap weight_map(Seq2Seq& model);

/// As save_language_model().
void save_seq2seq(Seq2Seq& model, const std::string& folder);
/// The weights as they stand in model.safetensors, for checkpoints.
io::TensorMap seq2seq_tensors(Seq2Seq& model);

/// Sizes are checked against the file's header before memory is taken. Throws IoError, FormatError.
Seq2Seq load_seq2seq(const std::string& folder);

/// Fills a model's weights from a model.safetensors or its folder. Throws IoError, FormatError; then nothing
/// has changed.
void load_weights(Seq2Seq& model, const std::string& path);

}  // namespace multihead::models
