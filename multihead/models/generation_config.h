// Generation defaults of a model folder: generation_config.json or, if absent, the same keys of config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::models {

/// Absent values are left to the program. Names are those of transformers.
struct GenerationConfig {
  std::string source = {};  ///< the file, for messages
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, length_penalty;
  std::optional<int64_t> top_k, num_beams, no_repeat_ngram_size;
  std::optional<int64_t> min_length, max_length;  ///< with the prompt, or the decoder's start token
  std::optional<int64_t> min_new_tokens, max_new_tokens;
  std::optional<int64_t> decoder_start_token_id, forced_bos_token_id, forced_eos_token_id;
  std::vector<int32_t> eos_token_ids = {};
  std::vector<std::vector<int32_t>> bad_words_ids = {};
  std::vector<int32_t> suppress_tokens = {};
  std::vector<std::string> stop_strings = {};
  bool early_stopping = false;
  bool never_stops_early = false;  ///< early_stopping is "never"
  bool renormalize_logits = false;
};

/// Throws FormatError naming file and key, also for unknown and unsupported keys.
GenerationConfig generation_config_from_json(const Json& json, const std::string& where);

/// The JSON that load_generation_config() reads; sets `where` to its file. Throws IoError, FormatError.
Json generation_json(const std::string& folder, std::string& where);
/// Throws IoError, FormatError.
GenerationConfig load_generation_config(const std::string& folder);

/// All supported keys; config.json may hold them too.
const std::vector<std::string>& generation_keys();

}  // namespace multihead::models
