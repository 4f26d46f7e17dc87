// Unicode normalisation as in Hugging Face's tokenizers. Private to text/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "multihead/text/tokenizer/pipeline/rewritten-inl.h"

namespace multihead::text {

enum class Normalizer : uint8_t { none, nfc, nfd, nfkc, nfkd };

/// The normalised text (Unicode Standard Annex 15), or nothing if a quick check finds it normalised. Invalid
/// bytes are kept and separate the text on either side.
std::optional<Rewritten> normalized(Normalizer form, std::string_view text, bool is_aligned = false);

/// Appends valid UTF-8, which begins at the input's byte `begin`, in this form, each character for the ones
/// it is made of. Slower than what does the same without.
void append_aligned(Normalizer form, std::string_view text, size_t begin, Rewritten& out);

}  // namespace multihead::text
