// What a reader sees of tokens: pictures of attention, tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/text/tokenizer.h"

namespace multihead::text {

/// One label per token, UTF-8. A token's label is its text; a token that holds only a part of a character has
/// the whole character and which part of how many this is: the two halves of é are "é¹⁄₂" and "é²⁄₂". Bytes
/// that belong to no character are "<0xE2>"; ids from vocab_size on, which stand for nothing, "<50300>".
/// Throws: ValueError for an id < 0.
std::vector<std::string> token_labels(const Tokenizer& tokenizer, std::span<const int32_t> ids);
/// The same of the tokens' bytes.
std::vector<std::string> token_labels(std::span<const std::string> pieces);

}  // namespace multihead::text
