// Saving and loading decoding states, to continue generation in another process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::models {

/// Saves the state, bit for bit, as a safetensors file with a checksum of all weights of its model (which
/// reads as much as one more token); tokens that no row holds are not written. Throws IoError
void save_state(const std::string& path, const nn::DecodeState& state, const LanguageModel& model);
void save_state(const std::string& path, const nn::DecodeState& state, const Seq2Seq& model);

/// Loads a saved state, with room for `capacity` tokens per row (0: as many as before).
///
/// Throws    IoError; FormatError: not such a file, inconsistent, of another model (layers, heads, sizes,
///           dtype, window or any weight differs), or saved with more capacity than the model's positions;
///           ValueError: the capacity is too small; MemoryError
nn::DecodeState load_state(const std::string& path, const LanguageModel& model, int64_t capacity = 0);
nn::DecodeState load_state(const std::string& path, const Seq2Seq& model, int64_t capacity = 0);

/// What the checksum of a model's weights is in such files.
std::string weights_checksum(const LanguageModel& model);
/// Saves a state of one row and its tokens; weights: weights_checksum(). Throws as save_state().
void save_prompt(const std::string& path, const std::vector<int32_t>& tokens, const nn::DecodeState& state,
                 const std::string& weights);
/// What such a file holds.
struct SavedPrompt {
  std::vector<int32_t> tokens;
  Dtype dtype = Dtype::f32;  ///< of the cache
};
/// Empty if it belongs to a model of other weights. Throws IoError, FormatError.
std::optional<SavedPrompt> saved_prompt(const std::string& path, const std::string& weights);
/// Its state. Throws as load_state().
nn::DecodeState load_prompt(const std::string& path, const LanguageModel& model, const std::string& weights);

}  // namespace multihead::models
