// Where words begin. Internal to the library.
#pragma once

#include <cstddef>
#include <string_view>

namespace multihead::text {

/// Whether the byte at `at`, which must be inside `text` and not its first, belongs to the word or the character of the
/// one before it. Words are letters, digits and marks (Unicode's L, N and M); in scripts that are written without
/// spaces between words (Han, kana, Thai, Lao, Burmese, Khmer, Tibetan) every character is a word.
bool is_inside_word(std::string_view text, size_t at);

}  // namespace multihead::text
