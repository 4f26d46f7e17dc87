// Reading stdin.
#pragma once

#include <string>

namespace multihead::cli {

/// The next line of stdin without its line break ("\n" or "\r\n"); false at the end. Throws InputError if
/// stdin cannot be read, which is not the end of the input.
bool read_line(std::string& line);

/// The text itself, or all of stdin for "-". Throws InputError.
std::string text_or_stdin(const std::string& text);

}  // namespace multihead::cli
