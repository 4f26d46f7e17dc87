#include "multihead/generate/prefix_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/generate/generator.h"
#include "multihead/nn/module.h"
#include "multihead/testing/files.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

models::LanguageModel seeded_model(uint64_t seed = 1, int64_t window = 0) {
  models::LanguageModelConfig c;
  c.window = window, c.positions = window > 0 ? models::Positions::rotary : c.positions;
  c.vocab_size = 31, c.context = 400, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.init_std = 0.3;
  Rng rng(seed);
  return {c, rng};
}

std::vector<int32_t> prompt(int64_t common, int64_t own, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < common + own; ++i) {
    const RandomStream stream{i < common ? 77 : seed, 0};
    const auto token = static_cast<int32_t>(stream.bits(static_cast<uint64_t>(i)) % 31);
    tokens.push_back(i == common ? static_cast<int32_t>(seed) : token);  // where they part
  }
  return tokens;
}

Tensor tensor_of(const std::vector<int32_t>& tokens) {
  return Tensor::of<int32_t>({1, static_cast<int64_t>(tokens.size())}, tokens);
}

class PrefixFolderTest : public ::testing::Test {
 protected:
  ~PrefixFolderTest() override { fs::remove_all(path_); }

  int64_t files() const {
    return fs::exists(path_) ? std::distance(fs::directory_iterator(path_), fs::directory_iterator()) : 0;
  }
  fs::path only_file() const { return fs::directory_iterator(path_)->path(); }

  // Reads a prompt and keeps it.
  void keep(const models::LanguageModel& m, const std::vector<int32_t>& tokens,
            std::optional<Dtype> dtype = {}, uint64_t bytes = 1 << 30) const {
    nn::DecodeState state = m.make_state({.dtype = dtype});
    m(tensor_of(tokens), {.state = &state});
    PrefixFolder(path_, m, bytes).remember(tokens, state, 0);
  }
  int64_t recalled(const models::LanguageModel& m, const std::vector<int32_t>& tokens, int64_t least = 0,
                   std::optional<Dtype> dtype = {}) const {
    nn::DecodeState state = m.make_state({.dtype = dtype});
    return PrefixFolder(path_, m).recall(tokens, least, state, 0);
  }

  std::string path_ = fs::temp_directory_path() / concat("multihead_prefix_", getpid());
};

TEST_F(PrefixFolderTest, ThePromptGoesOnBitForBitInAnotherProcess) {
  const auto m = seeded_model();
  for (const std::optional<Dtype> dtype :
       {std::optional<Dtype>(), std::optional(Dtype::bf16), std::optional(nn::kInt8Cache)}) {
    fs::remove_all(path_);
    keep(m, prompt(300, 20, 1), dtype);
    const std::vector<int32_t> other = prompt(300, 30, 2);
    nn::DecodeState whole = m.make_state({.dtype = dtype}), state = m.make_state({.dtype = dtype});
    const Tensor want = m(tensor_of(other), {.state = &whole});
    ASSERT_EQ(PrefixFolder(path_, m).recall(other, 0, state, 0), 300);
    const Tensor got = m(tensor_of({other.begin() + 300, other.end()}), {.state = &state});
    EXPECT_TRUE(
        std::equal(got.data<float>(), got.data<float>() + got.numel(), want.data<float>() + 300 * 31));
    // Another kind of cache, more than is there, or all of a prompt but its last token.
    EXPECT_EQ(recalled(m, other, 0, dtype == Dtype::bf16 ? Dtype::f32 : Dtype::bf16), 0);
    EXPECT_EQ(recalled(m, other, 300, dtype), 0);
    EXPECT_EQ(recalled(m, prompt(300, 0, 1), 0, dtype), 299);
  }
}

TEST_F(PrefixFolderTest, FilesBelongToWeightsAndContinuationsReplaceThem) {
  const auto m = seeded_model();
  keep(m, prompt(40, 2, 1)), keep(seeded_model(2), prompt(40, 2, 1));
  EXPECT_EQ(files(), 2);
  EXPECT_EQ(recalled(seeded_model(3), prompt(40, 2, 1)), 0);
  keep(m, prompt(40, 9, 1));  // says more
  EXPECT_EQ(files(), 2);
  keep(m, prompt(40, 5, 1));  // says nothing new
  EXPECT_EQ(files(), 2);
  keep(m, prompt(40, 5, 3));
  EXPECT_EQ(files(), 3);
  keep(m, prompt(40, 5, 3), nn::kInt8Cache);
  EXPECT_EQ(files(), 4);
  models::LanguageModel packed = nn::clone(m);
  packed.pack_weights(nn::WeightDtype::q8);
  EXPECT_EQ(recalled(packed, prompt(40, 9, 1)), 0);
}

TEST_F(PrefixFolderTest, TheOldestByUseGoFirst) {
  const auto m = seeded_model();
  keep(m, prompt(0, 50, 1));
  const auto bytes = fs::file_size(only_file());
  keep(m, prompt(0, 50, 2));
  for (const auto& entry : fs::directory_iterator(path_)) {
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 49);  // used
  keep(m, prompt(0, 50, 3), {}, 2 * bytes);
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 49);
  EXPECT_LT(recalled(m, prompt(0, 50, 2)), 49);
  EXPECT_EQ(recalled(m, prompt(0, 50, 3)), 49);
}

TEST_F(PrefixFolderTest, WhatIsNotOursStaysAndBrokenFilesDoNotCount) {
  const auto m = seeded_model();
  keep(m, prompt(0, 50, 1));
  const fs::path file = only_file();
  std::ofstream(fs::path(path_) / "notes.txt") << "mine";
  keep(m, prompt(0, 50, 2), {}, 1);  // all prompts go, this one too
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(fs::exists(fs::path(path_) / "notes.txt"));
  std::ofstream(file) << "cut off";
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 0);
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  keep(m, prompt(0, 50, 1));
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 0);
  EXPECT_TRUE(fs::is_fifo(file));
}

// The configuration decides as much as the weights.
TEST_F(PrefixFolderTest, FilesBelongToAConfiguration) {
  models::LanguageModelConfig c = seeded_model().config();
  c.positions = models::Positions::rotary;
  const auto with_base = [&](double base) {
    c.rotary_base = base;
    Rng rng(5);
    return models::LanguageModel(c, rng);
  };
  const auto m = with_base(1e4), other = with_base(1e6);
  keep(m, prompt(0, 50, 1));
  EXPECT_EQ(recalled(other, prompt(0, 50, 1)), 0);
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 49);
}

TEST_F(PrefixFolderTest, AFlippedBitDoesNotCount) {
  const auto m = seeded_model();
  keep(m, prompt(0, 50, 1));
  std::string bytes = read_file(only_file().string());
  bytes[bytes.size() - 5] ^= 16;
  std::ofstream(only_file(), std::ios::binary) << bytes;
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 0);
  bytes[bytes.size() - 5] ^= 16;
  std::ofstream(only_file(), std::ios::binary) << bytes;
  EXPECT_EQ(recalled(m, prompt(0, 50, 1)), 49);
}

// Without the folder, with the reason: it cannot be made, read or written.
TEST_F(PrefixFolderTest, AFolderThatFailsIsDoneWithout) {
  const auto m = seeded_model();
  fs::create_directories(path_);
  std::ofstream(fs::path(path_) / "file") << "mine";
  const std::vector<std::vector<int32_t>> prompts = {prompt(100, 3, 1), prompt(100, 3, 2)};
  const GenerateOptions options = {.max_new_tokens = 5, .seed = 3};
  const auto want = generate(m, prompts, options);
  const auto expect_note = [&](const std::string& folder, const char* reason) {
    std::vector<std::string> heard;
    const auto hear = [&](const std::string& message) { heard.push_back(message); };
    EXPECT_EQ(generate(m, prompts, options, {.prefix_folder = folder, .on_problem = hear}), want);
    ASSERT_EQ(heard.size(), 1u) << folder;
    EXPECT_NE(heard[0].find("the folder of prompts is not used: "), std::string::npos);
    EXPECT_NE(heard[0].find(reason), std::string::npos) << heard[0];
    EXPECT_EQ(generate(m, prompts, options, {.prefix_folder = folder}), want);
  };
  expect_note(path_ + "/file", "file");
  expect_note(path_ + "/file/below", "cannot be created");
  const FailingCalls full(FailingCalls::Kind::write, 0, ENOSPC);
  expect_note(path_, "No space left on device");
}

TEST_F(PrefixFolderTest, AModelOfWindowsSaysThatItCachesNothing) {
  const auto m = seeded_model(1, 8);
  std::vector<std::string> heard;
  const GeneratorOptions own = {.prefix_folder = path_,
                                .on_problem = [&](const std::string& message) { heard.push_back(message); }};
  generate(m, {prompt(3000, 3, 1)}, {.max_new_tokens = 5}, own);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_NE(heard[0].find("keeps its window of keys alone"), std::string::npos) << heard[0];
  EXPECT_EQ(files(), 0);
}

TEST_F(PrefixFolderTest, AGeneratorUsesIt) {
  const auto m = seeded_model();
  const GenerateOptions options = {.max_new_tokens = 9, .seed = 3};
  const std::vector<std::vector<int32_t>> prompts = {prompt(100, 3, 1), prompt(100, 3, 2)};
  const auto want = generate(m, prompts, options);
  for (int round = 0; round < 2; ++round)
    EXPECT_EQ(generate(m, prompts, options, {.prefix_folder = path_}), want);
  EXPECT_EQ(files(), 2);
  // What slides on past the context is no prompt.
  generate(m, {prompt(0, 390, 3)}, {.max_new_tokens = 30}, {.prefix_folder = path_});
  EXPECT_EQ(files(), 3);
}

}  // namespace
}  // namespace multihead
