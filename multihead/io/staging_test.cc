#include "multihead/io/staging.h"

#include <sys/stat.h>

#include <fstream>

#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr const char* kName = ".multihead-0123456789abcdef";

TEST(StagingTest, IsThereWhileItLives) {
  const TemporaryFolder folder;
  {
    const Staging staging(folder.path());
    std::ofstream(staging / "x") << "half";
    fs::create_directories(staging / "deep/er");
    EXPECT_THAT(find_leftovers(folder.path()), ElementsAre(fs::path(staging.path()).filename().string()));
  }
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  EXPECT_THROW(Staging(folder / "none"), IoError);
  EXPECT_THAT(remove_leftovers(folder / "none"), IsEmpty());
}

TEST(StagingTest, AWrittenFileTakesThePlaceOfALink) {
  const TemporaryFolder folder;
  std::ofstream(folder / "outside") << "precious";
  fs::create_symlink("outside", folder / "x");
  write_staged(folder.path(), "x", "new");
  EXPECT_EQ(node_at(folder / "x"), Node::file);
  EXPECT_EQ(read_file(folder / "x"), "new");
  EXPECT_EQ(read_file(folder / "outside"), "precious");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("outside", "x"));
}

// Names that look like leftovers, of this version and of others: only what carries the mark goes.
TEST(StagingTest, OnlyWhatCarriesTheMarkIsALeftover) {
  const TemporaryFolder folder;
  const auto put = [&](const std::string& name) { std::ofstream(folder / name) << "mine"; };
  for (const char* name : {"checkpoint-3.tmp", "backup-2024.tmp", "photos.tmp", ".multihead-0", ".multihead",
                           ".multihead-0123456789ABCDEF", ".multihead-0123456789abcdef0"}) {
    fs::create_directory(folder / name);
    put(std::string(name) + "/manifest.json");
    put(std::string(name) + "/" + name);
  }
  for (const char* name : {"notes.tmp-1-2", "config.json.tmp-123-0", ".multihead-0000000000000000"})
    put(name);
  fs::create_directory(folder / kName);
  put(std::string(kName) + "/thesis.txt");
  fs::create_directory_symlink("photos.tmp", folder / ".multihead-1111111111111111");
  const auto before = tree_of(folder.path());
  EXPECT_THAT(remove_leftovers(folder.path()), IsEmpty());
  EXPECT_EQ(tree_of(folder.path()), before);
  put(std::string(kName) + "/" + kName);
  EXPECT_THAT(remove_leftovers(folder.path()), ElementsAre(kName));
  EXPECT_FALSE(fs::exists(folder / kName));
}

TEST(StagingTest, AKillAtAnyMomentLeavesALeftoverOrNothing) {
  const TemporaryFolder folder;
  const auto check = [&](int nth) {
    remove_leftovers(folder.path());
    const std::vector<std::string> names = names_in(folder.path());
    if (names.empty()) return;
    EXPECT_THAT(names, ElementsAre("x")) << nth;
    EXPECT_EQ(read_file(folder / "x"), "content") << nth;
  };
  const auto save = [&] { write_staged(folder.path(), "x", "content"); };
  EXPECT_GT(kill_everywhere([] {}, save, check), 6);
}

}  // namespace
}  // namespace multihead::io
