#include "multihead/io/file_set.h"

#include <sys/stat.h>

#include <fstream>

#include "multihead/io/staging.h"
#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

const FileSet kSet = {"config.json", "model.safetensors", "source_tokenizer.json", "tokenizer.json"};

void put(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

// Every file tells which version it is of; the old one has a file that the new one lacks.
FillFolder version(const std::string& which) {
  return [which](DirectoryWriter& writer) {
    for (const std::string& name : kSet) {
      if (which == "old" || name != "source_tokenizer.json") writer.write(name, which + " " + name);
    }
  };
}

void save(const std::string& folder, const std::string& which) { save_files(folder, kSet, version(which)); }

// "old", "new", or "" if the key is missing; fails if the folder is a mixture.
std::string version_in(const std::string& folder) {
  if (node_at(folder + "/config.json") == Node::absent) return "";
  const std::string which = read_file(folder + "/config.json").substr(0, 3);
  for (const std::string& name : kSet) {
    const bool expected = which == "old" || name != "source_tokenizer.json";
    EXPECT_EQ(node_at(folder + "/" + name) == Node::file, expected) << name;
    if (expected) {
      EXPECT_EQ(read_file(folder + "/" + name), which + " " + name);
    }
  }
  return which;
}

TEST(FileSetTest, IsReplacedAsAWhole) {
  const TemporaryFolder folder;
  save(folder / "m", "old");
  EXPECT_EQ(version_in(folder / "m"), "old");
  put(folder / "m/notes.txt", "mine");
  save(folder / "m", "new");
  EXPECT_EQ(version_in(folder / "m"), "new");
  EXPECT_THAT(names_in(folder / "m"), ElementsAre("config.json", "manifest.json", "model.safetensors",
                                                  "notes.txt", "tokenizer.json"));
  remove_files(folder / "m", kSet);
  EXPECT_THAT(names_in(folder / "m"), ElementsAre("notes.txt"));
}

TEST(FileSetTest, NewFilesHaveThePermissionsOfTheOldOnes) {
  const TemporaryFolder folder;
  save(folder / "m", "old");
  const std::string weights = folder / "m/model.safetensors", config = folder / "m/config.json";
  ::chmod(weights.c_str(), 0600), ::chmod(config.c_str(), 0666);
  save(folder / "m", "new");
  const auto mode = [](const std::string& path) {
    struct stat status = {};
    ::stat(path.c_str(), &status);
    return status.st_mode & 0777;
  };
  EXPECT_EQ(mode(weights), 0600u);
  EXPECT_EQ(mode(config), 0666u);
}

TEST(FileSetTest, SetsShareAManifest) {
  const TemporaryFolder folder;
  save_files(folder.path(), {"a", "b"}, [](DirectoryWriter& w) { w.write("a", "1"), w.write("b", "2"); });
  save_files(folder.path(), {"c"}, [](DirectoryWriter& w) { w.write("c", "3"); });
  EXPECT_THAT(foreign_files(folder.path(), {"a", "b", "c"}, Look::bytes), IsEmpty());
  remove_files(folder.path(), {"a", "b"});
  EXPECT_THAT(names_in(folder.path()), ElementsAre("c", "manifest.json"));
  EXPECT_THROW(save_files(folder.path(), {"a"}, [](DirectoryWriter& w) { w.write("b", "2"); }), ValueError);
  EXPECT_THROW(save_files(folder.path(), {"a", "b"}, [](DirectoryWriter& w) { w.write("b", "2"); }),
               ValueError);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("c", "manifest.json"));
}

TEST(FileSetTest, AKillAtAnyMomentLeavesTheOldOrTheNewForWhoeverComesNext) {
  const TemporaryFolder folder;
  const std::string path = folder / "m";
  std::map<std::string, int> seen;
  const int kills = kill_everywhere(
      [&] {
        fs::remove_all(path);
        save(path, "old");
      },
      [&] { save(path, "new"); },
      [&](int nth) {
        const std::string which = version_in(path);
        ++seen[which];
        // Nothing is mistaken for a foreign file: the same save goes through.
        EXPECT_THAT(foreign_files(path, kSet, Look::bytes), IsEmpty()) << nth;
        // Whoever reads next ends what was begun, however often that is interrupted too.
        if (which.empty() && nth % 2 == 0) {
          check_complete(path, "config.json");
          EXPECT_EQ(version_in(path), "new") << nth;
        } else if (which.empty()) {
          fs::copy(path, path + "-left", fs::copy_options::recursive);
          const int more = kill_everywhere(
              [&] {
                fs::remove_all(path);
                fs::copy(path + "-left", path, fs::copy_options::recursive);
              },
              [&] { check_complete(path, "config.json"); },
              [&](int again) {
                check_complete(path, "config.json");
                EXPECT_EQ(version_in(path), "new") << nth << " " << again;
              });
          EXPECT_GT(more, 0);
          fs::remove_all(path + "-left");
        }
        save(path, "new");
        EXPECT_EQ(version_in(path), "new");
        EXPECT_EQ(names_in(path).size(), 4u) << nth;
      });
  EXPECT_GT(kills, 20);
  EXPECT_GT(seen["old"], 8);
  EXPECT_GT(seen[""], 5);
  EXPECT_GT(seen["new"], 0);
}

TEST(FileSetTest, EveryFailingCallLeavesTheOldOrTheNewForWhoeverComesNext) {
  for (const FailingCalls::Kind kind : FailingCalls::kAll) {
    for (int nth = 0; nth < 20; ++nth) {
      const TemporaryFolder folder;
      save(folder / "m", "old");
      bool threw = false;
      {
        const FailingCalls failing(kind, nth, ENOSPC);
        try {
          save(folder / "m", "new");
        } catch (const IoError&) {
          threw = true;
        }
      }
      check_complete(folder / "m", "config.json");
      const std::string which = version_in(folder / "m");
      EXPECT_EQ(which, threw && which != "new" ? "old" : "new") << static_cast<int>(kind) << " " << nth;
      save(folder / "m", "new");
      EXPECT_EQ(version_in(folder / "m"), "new");
    }
  }
}

TEST(FileSetTest, EachStepIsOnTheDiskBeforeTheNext) {
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "needs /proc to tell which file is flushed";
  const TemporaryFolder folder;
  save(folder / "m", "old");
  const DiskLog log;
  save(folder / "m", "new");
  EXPECT_THAT(DiskLog::lines(),
              ElementsAre("flush config.json", "flush model.safetensors", "flush tokenizer.json",
                          "flush manifest.json", "flush .multihead",  // staged
                          "remove config.json", "flush m",            //
                          "remove model.safetensors", "remove source_tokenizer.json", "remove tokenizer.json",
                          "flush m",                                          //
                          "rename manifest.json manifest.json", "flush m",    //
                          "rename model.safetensors model.safetensors",       //
                          "rename tokenizer.json tokenizer.json", "flush m",  //
                          "rename config.json config.json", "flush m",        //
                          "remove .multihead"));
}

TEST(FileSetTest, NothingOfSomebodyElseIsReplacedOrRemoved) {
  using Make = std::function<void(const std::string&)>;
  const std::vector<std::pair<const char*, Make>> table = {
      {"\"config.json\" was not written by multihead", [](auto& m) { put(m + "/config.json", "{}"); }},
      {"\"model.safetensors\" was not written", [](auto& m) { put(m + "/model.safetensors", "weights"); }},
      {"\"manifest.json\" is not multihead's", [](auto& m) { put(m + "/manifest.json", "{}"); }},
      {"\"manifest.json\" is a folder", [](auto& m) { fs::create_directory(m + "/manifest.json"); }},
      {"\"config.json\" was changed since",
       [](auto& m) {
         save(m, "old");
         put(m + "/config.json", "odd config.json");  // of the same size
       }},
      {"\"tokenizer.json\" was changed since",
       [](auto& m) {
         save(m, "old");
         put(m + "/tokenizer.json", "longer than before");
       }},
      {"\"config.json\" is a symbolic link, not a file",
       [](auto& m) {
         put(m + "-outside", "precious");
         fs::create_symlink(m + "-outside", m + "/config.json");
       }},
      {"\"config.json\" is a pipe",
       [](auto& m) { ASSERT_EQ(::mkfifo((m + "/config.json").c_str(), 0600), 0); }},
      {"\"model.safetensors\" is a folder", [](auto& m) { fs::create_directory(m + "/model.safetensors"); }},
      {"its .lock is a foreign file", [](auto& m) { put(m + "/.lock", "mine"); }},
      {"\"config.json\" was not written", [](auto& m) {
         put(m + "/.lock", "");
         put(m + "/config.json", "{}");
       }}};
  for (const auto& [reason, make] : table) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "m");
    make(folder / "m");
    const auto before = tree_of(folder.path());
    EXPECT_THAT(message_of<ValueError>([&] { save(folder / "m", "new"); }),
                testing::AllOf(HasSubstr(reason), HasSubstr("away or choose another folder")));
    EXPECT_EQ(tree_of(folder.path()), before) << reason;
  }
}

TEST(FileSetTest, AFolderInUseIsLeftAlone) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  EXPECT_THAT(message_of<IoError>([&] { save(folder.path(), "new"); }), HasSubstr("in use"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".lock"));
}

TEST(FileSetTest, WhatIsMissingIsExplainedWhereSomethingWasInterrupted) {
  const TemporaryFolder folder;
  check_complete(folder.path(), "config.json");  // just an empty folder: whoever opens the file says so
  EXPECT_THAT(message_of<IoError>([&] { check_complete(folder / "none", "config.json"); }),
              HasSubstr("nothing is downloaded"));
  const int staged = kill_everywhere([] {}, [&] { save(folder.path(), "new"); },
                                     [&](int) {
                                       if (version_in(folder.path()).empty()) return;
                                       remove_files(folder.path(), kSet);
                                     });
  EXPECT_GT(staged, 0);
  save_files(folder / "model", kModelFiles, [](DirectoryWriter& w) { w.write("config.json", "{}"); });
  EXPECT_THAT(message_of<FormatError>([&] { check_complete(folder / "model", "tokenizer.json"); }),
              HasSubstr("it holds a model and no tokenizer; save one there, tokenizer.save(folder)"));
  save_files(folder / "tok", kTokenizerFiles, [](DirectoryWriter& w) { w.write("tokenizer.json", "{}"); });
  EXPECT_THAT(message_of<FormatError>([&] { check_complete(folder / "tok", "config.json"); }),
              HasSubstr("it holds a tokenizer and no model"));
  {
    const FolderLock lock(folder / "tok");
    EXPECT_THAT(message_of<IoError>([&] { check_complete(folder / "tok", "config.json"); }),
                HasSubstr("another process is writing it"));
  }
  remove_files(folder.path(), kSet);
  remove_leftovers(folder.path());
  put(folder / kRunFile, "{}");
  EXPECT_THAT(message_of<FormatError>([&] { check_complete(folder.path(), "config.json"); }),
              HasSubstr("is unfinished; continue with --resume"));
}

TEST(FileSetTest, FilesOfEarlierVersionsCanBeAdopted) {
  const TemporaryFolder folder;
  put(folder / "config.json", "{}");
  EXPECT_THROW(save(folder.path(), "new"), ValueError);
  adopt_files(folder.path(), kSet);
  save(folder.path(), "new");
  EXPECT_EQ(version_in(folder.path()), "new");
}

}  // namespace
}  // namespace multihead::io
