// Unicode normalisation as in Hugging Face's tokenizers. Private to text/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace multihead::text {

enum class Normalizer : uint8_t { none, nfc, nfd, nfkc, nfkd };

/// The normalised text (Unicode Standard Annex 15), or nothing if a quick check finds it normalised. Invalid
/// bytes are kept and separate the text on either side.
std::optional<std::string> normalized(Normalizer form, std::string_view text);

}  // namespace multihead::text
