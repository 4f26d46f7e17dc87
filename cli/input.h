// What a verb reads from stdin.
#pragma once

#include <string>

namespace multihead::cli {

/// The next line of stdin without its line break ("\n" or "\r\n"); false at the end. Throws InputError if
/// stdin cannot be read: that is no end.
bool read_line(std::string& line);

/// The text itself; "-": all of stdin. Throws InputError, too.
std::string text_or_stdin(const std::string& text);

}  // namespace multihead::cli
