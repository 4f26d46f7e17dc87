// A folder with a small BERT, for the tests of runs of encoders.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/io/checkpoint.h"
#include "multihead/train/run.h"

namespace multihead::train {

class EncoderRunTest : public testing::Test {
 protected:
  EncoderRunTest()
      : root_(std::filesystem::temp_directory_path() /
              concat("multihead_", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid())) {
    std::filesystem::create_directories(root_);
    for (const char* name : {"bert", "bert_masked_lm", "bert_classifier"}) copy_encoder(name);
  }
  ~EncoderRunTest() override { std::filesystem::remove_all(root_); }

  // Copies one of tests/data/encoders and gives it words.
  void copy_encoder(const std::string& name) const {
    const std::filesystem::path data = std::filesystem::path(MULTIHEAD_SOURCE_DIR) / "tests/data/encoders";
    std::filesystem::copy(data / name, root_ / name, std::filesystem::copy_options::recursive);
    std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (const char* word : kWords) words += std::string(word) + "\n";
    write(name + "/vocab.txt", words);
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(root_ / name) << content;
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string bytes(const std::string& name) const { return read_file(path(name)); }

  // Sentences of words [begin, begin + 5).
  static std::string sentence(uint64_t seed, uint64_t begin) {
    const RandomStream stream{11, seed};
    std::string text;
    for (uint64_t i = 0; i < 2 + stream.bits(0) % 5; ++i) {
      text += (i == 0 ? "" : " ") + std::string(kWords[(begin + stream.bits(i + 1) % 5) % std::size(kWords)]);
    }
    return text;
  }

  // A run that is interrupted and goes on leaves what one does that is not.
  template <class Run, class Train>
  void expect_resumes(Run run, Train&& train, const std::string& file = "model.safetensors") {
    run.folder = path("whole");
    ASSERT_EQ(train(run).ending, Ending::finished);
    run.folder = path("half");
    int64_t asked = 0;
    run.should_stop = [&] { return ++asked > 9; };
    ASSERT_EQ(train(run).ending, Ending::interrupted);
    EXPECT_FALSE(std::filesystem::exists(root_ / "half" / file));
    run.should_stop = {}, run.resume = true;
    ASSERT_EQ(train(run).ending, Ending::finished);
    EXPECT_TRUE(bytes("half/" + file) == bytes("whole/" + file));
    EXPECT_EQ(steps_kept("half"), steps_kept("whole"));
    run.folder = path("other"), run.resume = false, run.settings.seed = 9;
    train(run);
    EXPECT_FALSE(bytes("other/" + file) == bytes("whole/" + file));  // the comparison can fail
  }

  std::vector<int64_t> steps_kept(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const io::CheckpointInfo& info : io::list_checkpoints(path(name))) steps.push_back(info.step);
    return steps;
  }

  template <class Error, class Call>
  static void expect_error(Call&& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "no error that says " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }

  static constexpr const char* kWords[] = {"the", "cat", "dog",   "sat",   "on",    "a",    "mat", "red",
                                           "sun", "sea", "green", "night", "water", "fire", "moon"};
  std::filesystem::path root_;
};

}  // namespace multihead::train
