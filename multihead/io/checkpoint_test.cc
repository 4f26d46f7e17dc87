#include "multihead/io/checkpoint.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "multihead/core/text/json.h"
#include "multihead/io/directory.h"
#include "multihead/io/staging.h"
#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

// Contents from which every file tells its step.
CheckpointContents contents_of(int64_t step, int64_t size = 37) {
  CheckpointContents contents;
  contents.tensors["model.safetensors"]["weight"] = Tensor::full({size}, static_cast<double>(step));
  contents.tensors["optimizer.safetensors"]["moment"] =
      Tensor::full({size}, static_cast<double>(step), Dtype::f64);
  contents.files["trainer_state.json"] = concat("{\"step\": ", step, "}");
  return contents;
}

void expect_whole(const std::string& path, int64_t step) {
  const CheckpointContents loaded = load_checkpoint(path);
  ASSERT_EQ(loaded.tensors.size(), 2u);
  for (const auto& [name, tensors] : loaded.tensors) {
    ASSERT_EQ(tensors.size(), 1u);
    for (const double value : tensors.begin()->second.to_vector<double>())
      ASSERT_EQ(value, static_cast<double>(step)) << name;
  }
  EXPECT_EQ(loaded.files.at("trainer_state.json"), concat("{\"step\": ", step, "}"));
}

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : list_checkpoints(folder)) steps.push_back(info.step);
  return steps;
}

TEST(CheckpointTest, WhatIsSavedIsLoaded) {
  const TemporaryFolder folder(TemporaryFolder::On::disk);
  EXPECT_EQ(save_checkpoint(folder.path(), 250, contents_of(250)), folder / "checkpoint-250");
  EXPECT_THAT(
      names_in(folder / "checkpoint-250"),
      ElementsAre("manifest.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"));
  expect_whole(folder / "checkpoint-250", 250);
}

TEST(CheckpointTest, TheNewestIsByStepNotByName) {
  const TemporaryFolder folder;
  EXPECT_FALSE(newest_checkpoint(folder.path()).has_value());
  EXPECT_FALSE(newest_checkpoint(folder / "none").has_value());
  for (const int64_t step : {9, 100, 0, 20}) save_checkpoint(folder.path(), step, contents_of(step));
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(0, 9, 20, 100));
  EXPECT_EQ(newest_checkpoint(folder.path())->step, 100);
}

TEST(CheckpointTest, TheSameStepIsReplaced) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 3, contents_of(1));
  save_checkpoint(folder.path(), 3, contents_of(2));
  expect_whole(folder / "checkpoint-3", 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-3"));
}

TEST(CheckpointTest, ReplacingWorksWithoutTheExchangeCall) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 3, contents_of(1));
  const FailingCalls failing(FailingCalls::Kind::exchange, 0, EINVAL);
  save_checkpoint(folder.path(), 3, contents_of(2));
  EXPECT_TRUE(FailingCalls::fired());
  expect_whole(folder / "checkpoint-3", 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-3"));
}

TEST(CheckpointTest, EveryFileReachesTheDiskBeforeTheName) {
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "needs /proc to tell which file is flushed";
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  {
    const DiskLog log;
    save_checkpoint(folder / "run", 3, contents_of(1));
    EXPECT_THAT(DiskLog::lines(),
                ElementsAre("flush model.safetensors", "flush optimizer.safetensors",
                            "flush trainer_state.json", "flush manifest.json", "flush checkpoint-3",
                            "rename checkpoint-3 checkpoint-3", "flush run", "remove .multihead"));
  }
  const DiskLog log;
  save_checkpoint(folder / "run", 3, contents_of(2));
  EXPECT_THAT(std::vector<std::string>(DiskLog::lines().end() - 4, DiskLog::lines().end()),
              ElementsAre("flush checkpoint-3", "exchange checkpoint-3 checkpoint-3", "flush run",
                          "remove .multihead"));
}

TEST(CheckpointTest, ALeftoverOfTheSameStepIsNotInTheWay) {
  const TemporaryFolder folder;
  const int kills = kill_everywhere([] {}, [&] { save_checkpoint(folder.path(), 3, contents_of(3)); },
                                    [&](int) {
                                      save_checkpoint(folder.path(), 3, contents_of(3));
                                      expect_whole(folder / "checkpoint-3", 3);
                                    });
  EXPECT_GT(kills, 10);
  remove_leftovers(folder.path());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-3"));
}

// Files that bear a checkpoint's name without being one of this run's stay as they are.
TEST(CheckpointTest, NothingOfSomebodyElseIsReplacedOrRemoved) {
  using Make = std::function<void(const std::string&)>;
  const auto inside = [](const char* name, const char* content) {
    return [=](const std::string& path) {
      fs::create_directory(path);
      std::ofstream(path + "/" + name) << content;
    };
  };
  const std::vector<std::pair<const char*, Make>> table = {
      {"was not written by multihead", inside("pytorch_model.bin", "weights")},
      {"was not written by multihead", [](auto& path) { fs::create_directory(path); }},
      {"cannot be identified as multihead's", inside("manifest.json", "{}")},
      {"cannot be identified as multihead's", inside("manifest.json", "")},
      {"is a file, not a folder", [](auto& path) { std::ofstream(path) << "mine"; }},
      {"is a pipe, not a folder", [](auto& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
      {"is a symbolic link, not a folder",
       [](auto& path) {
         save_checkpoint(path + "-outside", 3, contents_of(3));
         fs::create_directory_symlink(path + "-outside/checkpoint-3", path);
       }},
      {"belongs to another run",
       [](auto& path) { save_checkpoint(fs::path(path).parent_path(), 3, contents_of(3), "other"); }},
  };
  for (const auto& [reason, make] : table) {
    const TemporaryFolder folder;
    save_checkpoint(folder.path(), 5, contents_of(5), "mine");
    save_checkpoint(folder.path(), 7, contents_of(7), "mine");
    make(folder / "checkpoint-3");
    const auto before = tree_of(folder.path());
    EXPECT_THAT(message_of<ValueError>([&] { save_checkpoint(folder.path(), 3, contents_of(1), "mine"); }),
                HasSubstr(reason));
    EXPECT_THAT(message_of<ValueError>([&] { remove_directory_atomically(folder / "checkpoint-3", "mine"); }),
                HasSubstr(reason));
    EXPECT_THAT(prune_checkpoints(folder.path(), {.keep_newest = 2, .run = "mine"}), IsEmpty()) << reason;
    EXPECT_THAT(foreign_checkpoints(folder.path(), "mine"), ElementsAre(HasSubstr(reason)));
    EXPECT_EQ(tree_of(folder.path()), before) << reason;
  }
}

TEST(CheckpointTest, ForeignFoldersAndLeftoversArePassedOver) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 5, contents_of(5));
  fs::create_directories(folder / "checkpoint-9");  // another program's: no manifest
  fs::create_directories(folder / "checkpoint-007");
  fs::copy(folder / "checkpoint-5", folder / "checkpoint-6.tmp");
  fs::copy(folder / "checkpoint-5", folder / "checkpoint-05");
  fs::copy(folder / "checkpoint-5", folder / "checkpoint--8");
  fs::copy(folder / "checkpoint-5", folder / "checkpoint-99999999999999999999");
  EXPECT_EQ(newest_checkpoint(folder.path())->step, 5);
  EXPECT_THAT(foreign_checkpoints(folder.path(), ""), ElementsAre(HasSubstr("\"checkpoint-9\" was not")));
  EXPECT_THAT(remove_leftovers(folder.path()), IsEmpty());
}

TEST(CheckpointTest, EveryFlippedBitIsFoundAndTheFileNamed) {
  const TemporaryFolder folder;
  const std::string path = save_checkpoint(folder.path(), 1, contents_of(1, 3));
  for (const std::string& name : names_in(path)) {
    const std::string file = path + "/" + name;
    const std::string good = read_file(file);
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      std::ofstream(file, std::ios::binary) << bad;
      ASSERT_THAT(message_of<FormatError>([&] { verify_checkpoint(path); }), HasSubstr(name)) << bit;
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  verify_checkpoint(path);
}

TEST(CheckpointTest, DamageIsAnErrorUnlessFallingBackIsAskedFor) {
  const TemporaryFolder folder;
  for (const int64_t step : {1, 2, 3}) save_checkpoint(folder.path(), step, contents_of(step));
  fs::resize_file(folder / "checkpoint-3/model.safetensors", 50);
  EXPECT_THAT(message_of<FormatError>([&] { newest_checkpoint(folder.path()); }),
              HasSubstr("checkpoint-3/model.safetensors\" has 50 bytes, its manifest says"));
  // The size is right and a byte is wrong: only a look at every byte can tell.
  std::fstream file(folder / "checkpoint-2/optimizer.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_THAT(message_of<FormatError>([&] { load_checkpoint(folder / "checkpoint-2"); }),
              HasSubstr("checkpoint-2/optimizer.safetensors\" is corrupt"));
  EXPECT_EQ(newest_checkpoint(folder.path(), OnDamage::fall_back)->step, 1);
  fs::remove(folder / "checkpoint-3/model.safetensors");
  EXPECT_THAT(message_of<FormatError>([&] { newest_checkpoint(folder.path()); }),
              HasSubstr("model.safetensors\": No such file"));
}

TEST(CheckpointTest, OtherFormatVersionsAreRefusedByNumber) {
  const TemporaryFolder folder;
  const std::string path = save_checkpoint(folder.path(), 1, contents_of(1));
  std::string text = read_file(path + "/manifest.json");
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  std::ofstream(path + "/manifest.json") << text;
  EXPECT_THAT(message_of<FormatError>([&] { verify_checkpoint(path); }),
              HasSubstr("format version 2, this program reads 1"));
}

// A manifest is input as hostile as any: its names must not lead out of the folder.
TEST(CheckpointTest, AManifestCannotPointElsewhere) {
  const TemporaryFolder folder;
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\u0000b", "a\\nb"}) {
    const std::string path = folder / "checkpoint-1";
    fs::create_directories(path);
    std::ofstream(path + "/manifest.json")
        << "{\"format\":\"multihead-manifest\",\"version\":1,\"files\":[{\"name\":\"" << name
        << "\",\"bytes\":0,\"crc64\":\"0000000000000000\"}]}";
    EXPECT_THROW(verify_checkpoint(path), FormatError) << name;
    // The same with a right checksum of its own.
    Json json = Json::parse(read_file(path + "/manifest.json"));
    json["crc64"] = checksum_text(checksum(json.dump()));
    std::ofstream(path + "/manifest.json") << json;
    EXPECT_THAT(message_of<FormatError>([&] { verify_checkpoint(path); }),
                HasSubstr("not a plain file name"));
  }
}

TEST(CheckpointTest, PruningKeepsTheNewestAndTheBest) {
  const TemporaryFolder folder;
  for (const int64_t step : {10, 20, 30, 40, 50}) save_checkpoint(folder.path(), step, contents_of(step));
  fs::create_directories(folder / "checkpoint-1");
  EXPECT_THAT(prune_checkpoints(folder.path(), {.keep_newest = 2, .steps = {20}}), ElementsAre(10, 30));
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(20, 40, 50));
  EXPECT_TRUE(fs::exists(folder / "checkpoint-1"));
  EXPECT_THAT(prune_checkpoints(folder.path(), {.keep_newest = 7}), IsEmpty());
  EXPECT_THROW(prune_checkpoints(folder.path(), {.keep_newest = 0}), ValueError);
}

TEST(CheckpointTest, PruningNeverTakesTheLastCompleteOne) {
  const TemporaryFolder folder;
  for (const int64_t step : {1, 2, 3}) save_checkpoint(folder.path(), step, contents_of(step));
  fs::remove(folder / "checkpoint-2/trainer_state.json");
  fs::resize_file(folder / "checkpoint-3/manifest.json", 10);
  EXPECT_THAT(prune_checkpoints(folder.path(), {.keep_newest = 1}), IsEmpty());
  EXPECT_EQ(newest_checkpoint(folder.path(), OnDamage::fall_back)->step, 1);
}

TEST(CheckpointTest, BadArgumentsAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(save_checkpoint(folder.path(), -1, {}), ValueError);
  CheckpointContents contents;
  for (const char* name : {"", "..", "a/b", "manifest.json", "x.safetensors", "a\nb"}) {
    contents.files = {{name, "x"}};
    EXPECT_THROW(save_checkpoint(folder.path(), 1, contents), ValueError) << name;
  }
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  std::ofstream(folder / "checkpoint-1") << "a file";
  EXPECT_THAT(message_of<ValueError>([&] { save_checkpoint(folder.path(), 1, contents_of(1)); }),
              HasSubstr("it is a file, not a folder"));
}

TEST(CheckpointTest, EveryFailingCallLeavesTheOldCheckpointOrTheNew) {
  using Kind = FailingCalls::Kind;
  for (const Kind kind : FailingCalls::kAll) {
    for (const int64_t step : {1, 2}) {  // replaces one, or adds one
      for (int nth = 0; nth < 16; ++nth) {
        const TemporaryFolder folder;
        save_checkpoint(folder.path(), 1, contents_of(71));
        const int descriptors = open_descriptors();
        bool threw = false, fired = false;
        {
          const FailingCalls failing(kind, nth, ENOSPC);
          try {
            save_checkpoint(folder.path(), step, contents_of(72));
          } catch (const IoError& error) {
            threw = true;
            EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
          }
          fired = FailingCalls::fired();
        }
        const std::string where = concat("kind ", static_cast<int>(kind), " step ", step, " call ", nth);
        EXPECT_TRUE(!threw || fired) << where;
        EXPECT_EQ(open_descriptors(), descriptors) << where;
        const std::vector<std::string> names = names_in(folder.path());
        // A file that cannot be unlinked stays, and the next run removes it.
        const auto leftovers = static_cast<size_t>(kind == Kind::unlink && fired);
        EXPECT_EQ(find_leftovers(folder.path()).size(), leftovers) << where;
        EXPECT_EQ(names.size(), list_checkpoints(folder.path()).size() + leftovers) << where;
        const CheckpointInfo newest = newest_checkpoint(folder.path()).value();
        if (!threw) {
          expect_whole(checkpoint_path(folder.path(), step), 72);
        } else {
          const bool is_new = load_checkpoint(newest.path).files.at("trainer_state.json") == "{\"step\": 72}";
          expect_whole(newest.path, is_new ? 72 : 71);
        }
      }
    }
  }
}

// Saves and prunes until it is killed.
[[noreturn]] void save_forever(const std::string& folder, int64_t step) {
  const FolderLock lock(folder);
  remove_leftovers(folder);
  for (;; ++step) {
    save_checkpoint(folder, step, contents_of(step, 20'011));
    // Every third step again, as a resumed run does.
    if (step % 3 == 0) save_checkpoint(folder, step, contents_of(step, 20'011));
    prune_checkpoints(folder, {.keep_newest = 2, .steps = {1}});
  }
}

TEST(CheckpointTest, AKillAtAnyMomentLeavesACompleteCheckpoint) {
  const TemporaryFolder folder(TemporaryFolder::On::disk);
  save_checkpoint(folder.path(), 1, contents_of(1, 20'011));
  int64_t last = 1;
  int leftovers = 0;
  // On a busy machine a child may need longer for its first save.
  for (int round = 0; round < 20 || (last == 1 && round < 60); ++round) {
    const pid_t child = ::fork();
    if (child == 0) save_forever(folder.path(), last + 1);
    // Times that fall on every part of a save, whatever the disk does.
    std::this_thread::sleep_for(
        std::chrono::microseconds(3'000 + round * 7'919 % 61'000 + round / 20 * 200'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;

    const std::vector<CheckpointInfo> found = list_checkpoints(folder.path());
    ASSERT_FALSE(found.empty());
    for (const CheckpointInfo& info : found) {
      EXPECT_EQ(info.problem, "");
      expect_whole(info.path, info.step);
    }
    EXPECT_GE(found.back().step, last);
    EXPECT_EQ(found.front().step, 1) << "the best one is kept";
    last = found.back().step;
    leftovers += static_cast<int>(names_in(folder.path()).size() - found.size());
  }
  EXPECT_GT(last, 1) << "the child never finished a save";
  const FolderLock lock(folder.path());
  remove_leftovers(folder.path());
  EXPECT_EQ(names_in(folder.path()).size(), list_checkpoints(folder.path()).size() + 1);  // and the lock
  RecordProperty("leftovers", leftovers);
}

TEST(CheckpointTest, AReadOnlyFolderIsAnError) {
  // Root may write anywhere but here.
  EXPECT_THAT(message_of<IoError>([] { save_checkpoint("/proc/self/multihead", 1, contents_of(1)); }),
              HasSubstr("/proc/self/multihead"));
  if (::geteuid() == 0) return;
  const TemporaryFolder folder;
  ::chmod(folder.path().c_str(), 0500);
  EXPECT_THAT(message_of<IoError>([&] { save_checkpoint(folder.path(), 1, contents_of(1)); }),
              HasSubstr("Permission denied"));
  ::chmod(folder.path().c_str(), 0700);
}

}  // namespace
}  // namespace multihead::io
