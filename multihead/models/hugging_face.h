// Language models as Hugging Face directories: config.json, model.safetensors (and tokenizer.json beside
// them).
#pragma once

#include <string>

#include "multihead/core/json.h"
#include "multihead/models/language_model.h"
#include "multihead/models/weight_map.h"

namespace multihead::models {

/// What config.json says. `gpt2`, `llama`, `mistral` (llama with a sliding window and without biases),
/// `qwen2` (biases of queries, keys and values alone) and `qwen3` (norms of queries and keys) load in
/// transformers as GPT2LMHeadModel, LlamaForCausalLM and so on; `multihead` is everything that none of them
/// can express, under our own names.
enum class Family { gpt2, llama, mistral, qwen2, qwen3, multihead };

/// The family that can express this configuration.
Family family_of(const LanguageModelConfig& config);
const char* family_name(Family family);

/// config.json. What only training needs and the family has no field for goes under "multihead".
Json config_to_json(const LanguageModelConfig& config);
/// Throws FormatError naming file and field; also for a field that is not known.
LanguageModelConfig config_from_json(const Json& json, const std::string& where);

WeightMap weight_map(LanguageModel& model);

/// Writes config.json and model.safetensors, which change as one; makes the folder if need be. Files there
/// that this library did not write, or that were changed since, are left alone: ValueError (io/file_set.h).
/// Throws IoError, too.
void save_language_model(LanguageModel& model, const std::string& folder);
/// The weights as they stand in model.safetensors, for checkpoints.
io::TensorMap language_model_tensors(LanguageModel& model);

/// Sizes are checked against the file's header before memory is taken. Throws IoError, FormatError.
LanguageModel load_language_model(const std::string& folder);

}  // namespace multihead::models
