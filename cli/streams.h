// Standard input and output.
#pragma once

#include <string>
#include <string_view>

#include "multihead/core/text/json.h"

namespace multihead::cli {

/// The next line of stdin without its line break ("\n" or "\r\n"), the first without a byte order mark; false at
/// the end. Throws InputError if stdin cannot be read, which is not the end of the input, is compressed or UTF-16, or if
/// its lines end in CR alone.
bool read_line(std::string& line);
/// The text itself, or for "-" all of stdin without a byte order mark. Throws InputError likewise, whatever ends lines.
std::string text_or_stdin(const std::string& text);

/// Flushes stdout. Throws std::system_error if it has failed (closed pipe, full disk), so that work whose
/// output nobody reads ends.
void flush_output();
/// Prints and flushes. Throws likewise.
void put_output(std::string_view text);

/// A line of JSON, or lines indented by `indent`.
void put_json(const Json& json, int indent = 2);

/// The text as a word of a shell's command line.
std::string shell_word(std::string_view text);

/// A model's text as one line: valid UTF-8, spaces for line breaks.
std::string one_line(std::string_view text);

}  // namespace multihead::cli
