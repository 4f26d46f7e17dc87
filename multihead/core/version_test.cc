#include "multihead/core/version.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace multihead {
namespace {

TEST(VersionTest, LinkedLibraryMatchesTheHeader) {
  const std::string expected = std::to_string(MULTIHEAD_VERSION_MAJOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_MINOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
}

TEST(VersionTest, GitHashIsEmptyOrHexadecimal) {
  EXPECT_TRUE(std::regex_match(std::string(git_hash()), std::regex("([0-9a-f]{7,40})?")));
}

}  // namespace
}  // namespace multihead
