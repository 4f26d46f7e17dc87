// Incremental output on stdout.
#pragma once

#include <string>
#include <string_view>

namespace multihead::cli {

/// Flushes stdout. Throws std::system_error if it has failed (closed pipe, full disk), so that work whose
/// output nobody reads ends.
void flush_output();
/// Prints and flushes. Throws likewise.
void put_output(std::string_view text);

/// What a model wrote as one line: valid UTF-8, spaces for line breaks.
std::string one_line(std::string_view text);

}  // namespace multihead::cli
