// The command line as a function: what the program is, and `python -m multihead`.
#pragma once

#include <string>
#include <vector>

namespace multihead::cli {

/// Finds the verb, runs it, and turns what goes wrong into one line and an exit code (verb.h). `arguments` are those
/// after the program's name. Meant to be called once: it sets what signals do, and a verb may end the process.
int program(const std::vector<std::string>& arguments);

}  // namespace multihead::cli
