// The Unicode normalisation forms, as Hugging Face's tokenizers compute them. Private to text/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace multihead::text {

enum class Normalizer : uint8_t { none, nfc, nfd, nfkc, nfkd };

/// The text in a form (Unicode Standard Annex 15), or nothing where it is in it already by a quick look.
/// Bytes that are no valid UTF-8 stay, and what is on either side of them does not meet.
std::optional<std::string> normalized(Normalizer form, std::string_view text);

}  // namespace multihead::text
