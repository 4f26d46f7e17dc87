// "Did you mean": the name nearest to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace multihead::cli {

/// ` (did you mean "--max-new-tokens"?)` with the name that takes fewest edits (insert, delete, replace) to
/// reach from `typed`; a name that holds all of its words counts as near. Empty when none is near.
std::string suggestion(std::string_view typed, const std::vector<std::string>& names);

}  // namespace multihead::cli
