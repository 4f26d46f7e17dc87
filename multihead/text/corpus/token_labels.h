// Readable labels of tokens, for attention plots and tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

/// One label per token, UTF-8. A token's label is its text; a token that is part of a character shows the
/// whole character and the part: the two halves of é are "é¹⁄₂" and "é²⁄₂". Invalid bytes are "<0xE2>"; ids
/// from vocab_size on, which have no text, "<50300>". Throws: ValueError for an id < 0.
std::vector<std::string> token_labels(const Tokenizer& tokenizer, std::span<const int32_t> ids);
/// The same, from the tokens' bytes.
std::vector<std::string> token_labels(std::span<const std::string> pieces);

}  // namespace multihead::text
