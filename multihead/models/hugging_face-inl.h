// What the families of Hugging Face's language models share. Internal to models.
#pragma once

#include <string>

#include "multihead/io/config.h"
#include "multihead/models/hugging_face.h"

namespace multihead::models::detail {

inline constexpr io::IntegerRange kSize = {.min = 1, .max = int64_t{1} << 31};
inline constexpr io::NumberRange kProbability = {.min = 0, .max = 1};
inline constexpr io::NumberRange kPositive = {.min = 0, .exclude_min = true};

/// By Hugging Face's name.
Activation activation_field(io::ConfigReader& config, const char* key, Activation fallback);
const std::string& activation_name(Activation activation);

/// "rope_parameters" (transformers 5) or "rope_theta" and "rope_scaling" (4). Fails for kinds we do not have.
void read_rotary(io::ConfigReader& config, LanguageModelConfig& c);
/// The fields above, so that both versions read them.
void write_rotary(const LanguageModelConfig& c, Json& json);

/// Llama and what differs from it by a field or two: Mistral (a window), Qwen 2 (biases of queries, keys and
/// values), Qwen 3 (their norms). Family::multihead for what none of them can express.
Family llama_family(const LanguageModelConfig& c);
Json llama_json(const LanguageModelConfig& c, Family family);
LanguageModelConfig llama_config(io::ConfigReader& r, Family family);
WeightMap llama_map(const LanguageModelConfig& c);

}  // namespace multihead::models::detail
