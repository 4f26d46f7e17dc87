#include "multihead/core/version.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace multihead {
namespace {

TEST(VersionTest, LinkedLibraryMatchesTheHeader) {
  const std::string expected = std::to_string(MULTIHEAD_VERSION_MAJOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_MINOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
}

// The command line and Python print version(), CMake and pip read the header.
TEST(VersionTest, TheChangelogHasThisReleaseBelowWhatIsUnreleased) {
  std::ifstream file(MULTIHEAD_SOURCE_DIR "/CHANGELOG.md");
  std::vector<std::string> headings;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) headings.push_back(line);
  }
  ASSERT_GE(headings.size(), 2U);
  EXPECT_EQ(headings[0], "## [Unreleased]");
  const std::string release = "## [" + std::string(version()) + "] - ";
  EXPECT_EQ(headings[1].substr(0, release.size()), release);
}

TEST(VersionTest, RecipesThatCannotReadTheHeaderAgree) {
  for (const char* name :
       {"packaging/conda/recipe.yaml", "packaging/nix/default.nix", "packaging/vcpkg/vcpkg.json"}) {
    std::ifstream file(MULTIHEAD_SOURCE_DIR "/" + std::string(name));
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_NE(text.find('"' + std::string(version()) + '"'), text.npos) << name;
  }
}

TEST(VersionTest, GitHashNamesACommitOfTheCheckout) {
  const std::string hash(git_hash());
  if (hash.empty()) GTEST_SKIP() << "configured without git";
  const std::string command = "git -C '" MULTIHEAD_SOURCE_DIR "' cat-file -e '" + hash + "^{commit}'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace multihead
