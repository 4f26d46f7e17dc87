// Files that comments and the guides for developers name exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing-inl.h"

namespace multihead {
namespace {

// A folder, a name and an extension, or "{h,cc}" for both; URLs are none.
const std::regex kPath(R"((^|[^\w/.:<-])((?:[\w.-]+/)+[\w.-]+?)\.(h|cc|pyi|py|sh|md|ipynb|\{h,cc\})\b)");

bool starts_as_placeholder(const std::string& name) { return name == "x" || name.rfind("x_", 0) == 0; }

// Placeholders of a recipe: a file yet to be written.
bool is_placeholder(const std::string& path) {
  return path.find("SUBJECT") != std::string::npos ||
         starts_as_placeholder(fs::path(path).filename().string()) || path.find("...") != std::string::npos;
}

// A comment names a file from the root, from multihead/, from its own folder or one above it.
bool exists(const fs::path& named_in, const std::string& path) {
  std::vector<fs::path> bases = {kRoot, kRoot / "multihead", kRoot / "multihead" / "kernels"};
  for (fs::path at = named_in.parent_path(); at != kRoot && at.has_relative_path(); at = at.parent_path()) {
    bases.push_back(at);
  }
  return std::any_of(bases.begin(), bases.end(),
                     [&](const fs::path& base) { return fs::exists(base / path); });
}

std::vector<std::string> missing(const fs::path& file, const std::string& text, int& seen) {
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), kPath), end; match != end; ++match) {
    const std::string stem = (*match)[2], extension = (*match)[3];
    if (is_placeholder(stem)) continue;
    const std::vector<std::string> extensions =
        extension[0] == '{' ? std::vector<std::string>{"h", "cc"} : std::vector<std::string>{extension};
    for (const std::string& one : extensions) {
      ++seen;
      if (!exists(file, stem + "." + one)) found.push_back(stem + "." + one);
    }
  }
  return found;
}

// The comment of a line: what follows "//" outside a string, as far as a line tells.
std::string comment_of(const std::string& line) {
  bool quoted = false;
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && line.compare(i, 2, "//") == 0) {
      return line.substr(i + 2);
    }
  }
  return "";
}

TEST(PathsTest, CommentsNameFilesThatExist) {
  int seen = 0;
  for (const char* top : {"multihead", "cli", "python", "examples", "bench", "tests", "plugins"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      const fs::path& file = entry.path();
      if (file.extension() != ".cc" && file.extension() != ".h") continue;
      std::ifstream in(file);
      int number = 0;
      for (std::string line; std::getline(in, line);) {
        ++number;
        for (const std::string& path : missing(file, comment_of(line), seen)) {
          ADD_FAILURE() << fs::relative(file, kRoot).string() << ":" << number << " names " << path
                        << ", which does not exist";
        }
      }
    }
  }
  EXPECT_GT(seen, 50) << "the pattern for paths no longer matches";
}

TEST(PathsTest, GuidesNameFilesThatExist) {
  for (const char* name : {"docs/adding-an-op.md", "docs/architecture.md", "CONTRIBUTING.md", "README.md"}) {
    std::ifstream in(kRoot / name);
    ASSERT_TRUE(in) << name;
    std::stringstream text;
    text << in.rdbuf();
    int seen = 0;
    for (const std::string& path : missing(kRoot / name, text.str(), seen)) {
      ADD_FAILURE() << name << " names " << path << ", which does not exist";
    }
    EXPECT_GT(seen, 0) << name;
  }
}

}  // namespace
}  // namespace multihead
