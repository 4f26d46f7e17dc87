// Where the files are that tests of the project read.
#pragma once

#include <filesystem>

namespace multihead {

namespace fs = std::filesystem;

inline const fs::path kRoot = MULTIHEAD_SOURCE_DIR;

}  // namespace multihead
