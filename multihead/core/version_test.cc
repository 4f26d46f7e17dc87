#include "multihead/core/version.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace multihead {
namespace {

TEST(VersionTest, LinkedLibraryMatchesTheHeader) {
  const std::string expected = std::to_string(MULTIHEAD_VERSION_MAJOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_MINOR) + "." +
                               std::to_string(MULTIHEAD_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
}

TEST(VersionTest, GitHashNamesACommitOfTheCheckout) {
  const std::string hash(git_hash());
  if (hash.empty()) GTEST_SKIP() << "configured without git";
  const std::string command = "git -C '" MULTIHEAD_SOURCE_DIR "' cat-file -e '" + hash + "^{commit}'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace multihead
