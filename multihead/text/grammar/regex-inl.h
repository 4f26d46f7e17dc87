// Regular expressions. Private to grammar/.
#pragma once

#include <string_view>

#include "multihead/text/grammar/pattern-inl.h"

namespace multihead::text::grammar {

/// Throws ValueError with the byte.
Pattern parse_regex(std::string_view source);
/// The characters of "[...]" behind its bracket, which end behind the closing one; `source` is for messages.
CharSet parse_class(std::string_view source, size_t& at, const char* who);
/// The characters of an escape, at its backslash.
CharSet parse_escape(std::string_view source, size_t& at, const char* who);

}  // namespace multihead::text::grammar
