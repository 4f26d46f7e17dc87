// What a verb says on stdout as it goes along.
#pragma once

#include <string>
#include <string_view>

namespace multihead::cli {

/// Sends off what was printed so far. Throws std::system_error once stdout has failed (closed pipe, full
/// disk): a stream nobody reads ends the work that feeds it.
void flush_output();
/// Prints and flushes. Throws the same.
void put_output(std::string_view text);

/// What a model wrote as one line: valid UTF-8, spaces for line breaks.
std::string one_line(std::string_view text);

}  // namespace multihead::cli
