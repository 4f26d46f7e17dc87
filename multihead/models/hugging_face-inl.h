// What the families of Hugging Face's language models share. Internal to models.
#pragma once

#include <string>

#include "multihead/models/config_keys-inl.h"
#include "multihead/models/hugging_face.h"

namespace multihead::models::detail {

/// By Hugging Face's name.
Activation activation_field(io::ConfigReader& config, const std::string& key, Activation fallback);
const std::string& activation_name(Activation activation);

/// "rope_parameters" (transformers 5) or "rope_theta" and "rope_scaling" (4). Fails for kinds we do not have.
void read_rotary(io::ConfigReader& config, LanguageModelConfig& c);
/// The frequencies that transformers once saved with each layer.
ExtraTensor rotary_buffers(const LanguageModelConfig& c);
/// The fields above, so that both versions read them.
void write_rotary(const LanguageModelConfig& c, Json& json);

/// In the order of the enum.
const std::vector<std::string>& family_names();

bool is_gpt2(const LanguageModelConfig& c);
Json gpt2_json(const LanguageModelConfig& c);
LanguageModelConfig gpt2_config(io::ConfigReader& r);
WeightMap gpt2_map(const LanguageModelConfig& c);

/// Llama and what differs from it by a field or two: Mistral (a window), Qwen 2 (biases of queries, keys and
/// values), Qwen 3 (their norms). Family::multihead for what none of them can express.
Family llama_family(const LanguageModelConfig& c);
Json llama_json(const LanguageModelConfig& c, Family family);
LanguageModelConfig llama_config(io::ConfigReader& r, Family family);
WeightMap llama_map(const LanguageModelConfig& c);

}  // namespace multihead::models::detail
