// Saving and loading decoding states, to continue generation in another process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::models {

/// Saves the state, bit for bit, as a safetensors file with a checksum of its contents and one of its model:
/// the configuration and all weights (which reads as much as one more token). Tokens that no row holds are
/// not written. Throws IoError
void save_state(const std::string& path, const nn::DecodeState& state, const LanguageModel& model);
void save_state(const std::string& path, const nn::DecodeState& state, const Seq2Seq& model);

/// Loads a saved state, with room for `capacity` tokens per row (0: as many as before).
///
/// Throws    IoError; FormatError: not such a file, inconsistent, corrupt, of another model (any field of the
///           configuration or any weight differs), or saved with more capacity than the model's positions;
///           ValueError: the capacity is too small; MemoryError
nn::DecodeState load_state(const std::string& path, const LanguageModel& model, int64_t capacity = 0);
nn::DecodeState load_state(const std::string& path, const Seq2Seq& model, int64_t capacity = 0);

/// The checksum of a model in such files: of its configuration and its weights.
std::string model_checksum(const LanguageModel& model);
/// Saves a state of one row and its tokens; checksum: model_checksum(). Throws as save_state().
void save_prompt(const std::string& path, const std::vector<int32_t>& tokens, const nn::DecodeState& state,
                 const std::string& checksum);
/// The contents of such a file.
struct SavedPrompt {
  std::vector<int32_t> tokens;
  Dtype dtype = Dtype::f32;  ///< of the cache
};
/// Empty if it belongs to another model. The contents' checksum is left to load_prompt(). Throws IoError,
/// FormatError.
std::optional<SavedPrompt> saved_prompt(const std::string& path, const std::string& checksum);
/// Its state. Throws as load_state().
nn::DecodeState load_prompt(const std::string& path, const LanguageModel& model, const std::string& checksum);

}  // namespace multihead::models
