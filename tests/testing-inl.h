// What tests that read the project's files share.
#pragma once

#include <filesystem>
#include <string>

namespace multihead {

namespace fs = std::filesystem;

inline const fs::path kRoot = MULTIHEAD_SOURCE_DIR;

inline bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace multihead
