// "Did you mean": the name nearest to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace multihead::cli {

/// ` (did you mean "--max-new-tokens"?)` with the name at the smallest edit distance from `typed`; a name
/// that contains all its words counts as near. Empty if none is near.
std::string suggestion(std::string_view typed, const std::vector<std::string>& names);

}  // namespace multihead::cli
