// The languages of translators that know many: tokens that a tokenizer's template puts around every text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

/// The special token of a language ("eng_Latn"). Throws ValueError: there is none of this name.
int32_t language_token(const Tokenizer& tokenizer, const std::string& language);

/// A text to be translated, with its end. Where the template names a language, `language`, or the "src_lang" of
/// tokenizer_config.json, takes its place. Throws ValueError: a language that the tokenizer or its template has no
/// place for, the text begins with a code (">>fra<<") that is none of Marian's; what Tokenizer::encode throws.
std::vector<int32_t> encode_source(const Tokenizer& tokenizer, std::string_view text, int32_t end,
                                   const std::string& language = {});

/// A translation, likewise in "tgt_lang". Throws ValueError, too, where the template names a language and nothing
/// says the translation's.
std::vector<int32_t> encode_target(const Tokenizer& tokenizer, std::string_view text, int32_t end);

}  // namespace multihead::text
