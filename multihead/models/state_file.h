// Decoding states on disk: generation that goes on in another process.
#pragma once

#include <string>

#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::models {

/// The state, exact to the bit, as a safetensors file, with a checksum of all weights of its model (as much
/// reading as one more token); tokens that no row holds are not written. Throws IoError
void save_state(const std::string& path, const nn::DecodeState& state, const LanguageModel& model);
void save_state(const std::string& path, const nn::DecodeState& state, const Seq2Seq& model);

/// A state that was saved, with room for `capacity` tokens per row (0: as many as before).
///
/// Throws    IoError; FormatError: this is no such file, its parts contradict each other, or it belongs to
///           another model (layers, heads, sizes, dtype, window, or any weight differs), or was saved with
///           more capacity than the model takes tokens; ValueError: the capacity is too small; MemoryError
nn::DecodeState load_state(const std::string& path, const LanguageModel& model, int64_t capacity = 0);
nn::DecodeState load_state(const std::string& path, const Seq2Seq& model, int64_t capacity = 0);

}  // namespace multihead::models
