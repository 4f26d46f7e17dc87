// Language models that are fine-tuned: sequences shorter than the model's, conversations, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/memory.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/files.h"
#include "multihead/train/tasks/language_model_run.h"

namespace multihead::train {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TunedLanguageModelTest : public ::testing::Test {
 protected:
  TunedLanguageModelTest() {
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 300; ++i) text << (i % 7 == 0 ? "the cat sat on a mat. " : "nine dogs run and saw ");
  }

  static LanguageModelSettings small() {
    LanguageModelSettings s;
    s.model.num_layers = 2, s.model.num_heads = 2, s.model.embed_dim = 20, s.model.context = 17;
    s.tokenizer = TokenizerChoice::characters;
    s.steps = 3, s.batch = 3, s.lr = 5e-3, s.warmup_steps = 1, s.eval_every = 2, s.eval_windows = 7;
    return s;
  }
  LanguageModelRun run(const std::string& name, const LanguageModelSettings& settings = small()) const {
    return {{.data = file_path("text.txt"), .folder = file_path(name)}, settings};
  }
  std::string file_path(const std::string& name) const { return root_ / name; }
  static std::string weights(const LanguageModelRun& run) {
    return read_file(run.folder + "/model.safetensors");
  }
  // Stops when it is asked whether to for the given time.
  static LanguageModelSummary stopped_at(LanguageModelRun run, int64_t question) {
    int64_t asked = 0;
    run.should_stop = [&] { return asked++ >= question; };
    return train_language_model(run);
  }

  TemporaryFolder root_;
};

TEST_F(TunedLanguageModelTest, ShorterSequencesLeaveTheModelItsPositions) {
  train_language_model(run("a"));
  LanguageModelRun tuned = run("b");
  tuned.init = tuned.tokenizer = file_path("a");
  start_from(tuned.settings, tuned.init);
  EXPECT_EQ(tuned.settings.positions, 17);
  tuned.settings.model.context = 9, tuned.settings.steps = 2;
  train_language_model(tuned);
  EXPECT_EQ(models::load_language_model(tuned.folder).config().context, 17);
  tuned.settings.model.context = 18;
  EXPECT_THAT([&] { train_language_model(tuned); },
              ThrowsMessage<ValueError>(HasSubstr("--context must be at most 17, the positions")));
}

// Steps that only do harm, on letters in reverse: the first of them is kept, as of a run that was stopped in between.
TEST_F(TunedLanguageModelTest, TheBestIsATrainedOne) {
  LanguageModelRun start = run("start");
  start.settings.steps = 60;
  EXPECT_FALSE(train_language_model(start).worse_than_start);
  std::string letters = read_file(file_path("text.txt"));
  std::ranges::reverse(letters);
  std::ofstream(file_path("reverse.txt")) << letters;
  const auto harmed = [&](const std::string& name) {
    LanguageModelRun r = run(name);
    r.init = start.folder, r.data = file_path("reverse.txt"), r.valid = file_path("text.txt");
    start_from(r.settings, r.init);
    r.settings.steps = 8, r.settings.eval_every = 2, r.settings.keep = 1, r.settings.batch = 3;
    r.settings.lr = 1e-2;
    return r;
  };
  LanguageModelRun whole = harmed("whole"), parts = harmed("parts");
  const LanguageModelSummary summary = train_language_model(whole);
  EXPECT_TRUE(summary.worse_than_start);
  EXPECT_TRUE(io::load_json(whole.folder + "/summary.json").at("worse_than_start").as_bool());
  const Progress& p = summary.progress;
  EXPECT_EQ(p.best_step, 2);
  EXPECT_GT(p.best_loss, p.first_loss);
  EXPECT_LT(p.best_loss, p.last_loss);
  EXPECT_EQ(summary.kept_loss, p.best_loss);
  EXPECT_EQ(weights(whole), read_file(whole.folder + "/checkpoint-2/model.safetensors"));
  EXPECT_EQ(stopped_at(parts, 12).ending, Ending::interrupted);
  parts.resume = true;
  EXPECT_EQ(train_language_model(parts).progress.best_step, 2);
  EXPECT_EQ(weights(parts), weights(whole));
}

// What init does not fit leaves a folder as it was, for the command put right; so does what the first evaluation refuses.
TEST_F(TunedLanguageModelTest, ARefusedStartLeavesNoRun) {
  train_language_model(run("a"));
  LanguageModelRun tuned = run("b");
  tuned.init = tuned.tokenizer = file_path("a");
  start_from(tuned.settings, tuned.init);
  tuned.settings.steps = 2, tuned.settings.batch = 3;
  const LanguageModelRun right = tuned;
  tuned.settings.model.num_layers = 3, tuned.settings.model.embed_dim = 24,
  tuned.settings.model.dropout_p = 0.5;
  const auto refuse = [&](const char* message) {
    EXPECT_THAT([&] { train_language_model(tuned); }, ThrowsMessage<ValueError>(HasSubstr(message)));
  };
  refuse("does not fit --layers 3 (it has 2), --width 24 (it has 20); leave");
  EXPECT_FALSE(std::filesystem::exists(tuned.folder));
  tuned = right;
  tuned.settings.lora.rank = 2, tuned.settings.lora.targets = "nope";
  refuse("nope");
  EXPECT_FALSE(std::filesystem::exists(tuned.folder));
  tuned = right;
  tuned.settings.best = "nope";
  refuse("--best must be a figure of the evaluations");
  EXPECT_FALSE(std::filesystem::exists(tuned.folder));
  train_language_model(right);
  // What is there already stays.
  tuned = right;
  tuned.overwrite = true, tuned.settings.model.num_layers = 3;
  const std::string before = weights(right);
  refuse("--layers 3");
  EXPECT_EQ(weights(right), before);
  tuned = right;
  tuned.overwrite = true, tuned.settings.best = "nope";
  refuse("--best must be a figure of the evaluations");
  EXPECT_EQ(weights(right), before);
}

// Conversations: learned, resumed bit for bit, with validation data of their own.
TEST_F(TunedLanguageModelTest, ConversationsAreLearned) {
  LanguageModelSettings base = small();
  base.steps = 2, base.tokenizer = TokenizerChoice::bpe, base.vocab_size = 270, base.model.context = 64;
  train_language_model(run("base", base));
  Json config = io::load_json(file_path("base/tokenizer_config.json"));
  config["chat_template"] =
      "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
  std::ofstream(file_path("base/tokenizer_config.json")) << config.dump();
  for (const char* name : {"chats.jsonl", "valid.jsonl"}) {
    std::ofstream chats(file_path(name));
    for (const char* word : {"cat", "dog", "mat", "run", "saw"}) {
      chats << R"({"messages":[{"role":"user","content":")" << word
            << R"("},{"role":"assistant","content":"the )" << word << " sat\"}]}\n";
    }
  }
  LanguageModelRun r = run("whole");
  r.data = file_path("chats.jsonl"), r.valid = file_path("valid.jsonl"), r.init = file_path("base");
  start_from(r.settings, r.init);
  r.settings.steps = 40, r.settings.lr = 1e-2, r.settings.batch = 5, r.settings.model.dropout_p = 0.1;
  r.settings.eval_every = 6;
  const LanguageModelSummary summary = train_language_model(r);
  EXPECT_LT(summary.progress.last_loss, summary.progress.first_loss - 1);
  EXPECT_GT(summary.validation->bytes, 5 * 11);
  LanguageModelRun parts = r;
  parts.folder = file_path("parts");
  EXPECT_EQ(stopped_at(parts, 20).ending, Ending::interrupted);
  parts.resume = true;
  EXPECT_EQ(train_language_model(parts).ending, Ending::finished);
  EXPECT_EQ(weights(parts), weights(r));
  // Two micro-batches are the batch of both.
  LanguageModelSettings plain = r.settings;
  plain.model.dropout_p = plain.model.attention_dropout_p = 0;
  const LanguageModelData data = read_dialogue_data(r.data, r.valid, plain, text::Tokenizer::load(r.init));
  const auto sum = [&](int64_t batch, int64_t index) {
    plain.batch = batch;
    LanguageModelTask task(plain, data);
    return task.loss(index).value.item() * static_cast<double>(task.targets(index));
  };
  EXPECT_NEAR(sum(4, 0), sum(2, 0) + sum(2, 1), 1e-3);
  r.valid = file_path("text.txt"), r.overwrite = true;
  EXPECT_THAT([&] { train_language_model(r); },
              ThrowsMessage<FormatError>(HasSubstr("JSON Lines, and both must be")));
}

TEST_F(TunedLanguageModelTest, ABatchThatCannotFitIsRefusedWithTheLargestThatDoes) {
  LanguageModelSettings s = small();
  s.batch = int64_t{1} << 26;
  EXPECT_THAT([&] { train_language_model(run("a", s)); },
              ThrowsMessage<MemoryError>(HasSubstr("the largest that fits is --batch ")));
  EXPECT_EQ(node_at(file_path("a/config.json")), Node::absent);
}

}  // namespace
}  // namespace multihead::train
