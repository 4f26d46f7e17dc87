#include "multihead/train/tasks/masked_lm_run.h"

#include <gmock/gmock.h>

#include "multihead/embed/text_classifier.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/encoder_run.h"
#include "multihead/testing/matchers.h"

namespace multihead::train {
namespace {

class MaskedLmRunTest : public EncoderRunTest {
 protected:
  MaskedLmRunTest() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += i % 2 == 0 ? "the red cat sat on a mat " : "a green sea at night \n";
    write("text.txt", text);
  }

  MaskedLmRun run(const std::string& name, const std::string& init) const {
    MaskedLmRun run;
    run.data = path("text.txt"), run.folder = path(name);
    run.settings = masked_lm_settings("tiny");
    MaskedLmSettings& s = run.settings;
    if (init.empty()) {
      s.model.num_layers = 1, s.model.num_heads = 2, s.model.embed_dim = 16, s.vocab_size = 300;
    } else {
      run.init = path(init);
      start_from(s, run.init);
    }
    s.max_length = 16, s.batch = 8, s.steps = 60, s.lr = 1e-2, s.warmup_steps = 5, s.eval_every = 5;
    s.log_every = 1;
    return run;
  }
};

TEST_F(MaskedLmRunTest, LearnsFromNothingAndFromAFolder) {
  for (const char* init : {"", "bert", "bert_masked_lm"}) {
    MaskedLmRun r = run("a", init);
    r.overwrite = true;
    const MaskedLmSummary summary = train_masked_lm(r);
    ASSERT_TRUE(summary.validation) << init;
    EXPECT_LT(summary.validation->loss(), summary.progress.first_loss - 0.5) << init;
    const models::Encoder model = models::load_encoder(path("a"));
    EXPECT_EQ(model.config().head, models::EncoderHead::masked_lm);
    EXPECT_EQ(models::family_of(model.config()), "bert");
    const auto tokenizer = text::Tokenizer::load(path("a"));
    EXPECT_EQ(embed::fill_mask(model, tokenizer, "the red cat [MASK] on a mat", 1).size(), 1u);
    const Json config = io::load_json(path("a/tokenizer_config.json"));
    EXPECT_EQ(config.at("mask_token").as_string(), "[MASK]") << init;
    EXPECT_EQ(tokenizer.encode("", {}),
              (std::vector<int32_t>{*tokenizer.id("[CLS]"), *tokenizer.id("[SEP]")}));
  }
}

// --context is the length of sequences, and of other sizes nothing is trained on.
TEST_F(MaskedLmRunTest, AFolderKeepsItsPositionsAndSizes) {
  MaskedLmRun r = run("a", "bert_masked_lm");
  const models::EncoderConfig own = r.settings.model;
  r.settings.steps = 1, r.settings.lr = 1e-12, r.settings.weight_decay = 0;
  r.settings.model.context = own.context - 4;
  train_masked_lm(r);
  const models::Encoder before = models::load_encoder(path("bert_masked_lm")),
                        after = models::load_encoder(path("a"));
  EXPECT_EQ(after.config().context, own.context);
  EXPECT_TRUE(testing::same_bits(before.position_embedding.weight, after.position_embedding.weight));
  r.overwrite = true;
  r.settings.model.context = own.context + 1;
  EXPECT_MESSAGE(train_masked_lm(r), ValueError, "is more than the model of --init");
  r.settings.model = own, r.settings.model.num_heads = 1;
  EXPECT_MESSAGE(train_masked_lm(r), ValueError, "--heads 1 (it has ");
}

TEST_F(MaskedLmRunTest, AnInterruptedRunGoesOnBitForBit) {
  MaskedLmRun r = run("", "bert_masked_lm");
  r.settings.steps = 12, r.settings.model.dropout_p = 0.1;
  expect_resumes(r, train_masked_lm);
}

// Before 0.2, --ff was called --ffn-width, also in a run's record and its checkpoints.
TEST_F(MaskedLmRunTest, ARunOfAnEarlierVersionGoesOn) {
  MaskedLmRun r = run("a", "");
  r.settings.steps = 12;
  int64_t asked = 0;
  r.should_stop = [&] { return ++asked > 9; };
  ASSERT_EQ(train_masked_lm(r).ending, Ending::interrupted);
  const io::CheckpointInfo newest = io::list_checkpoints(r.folder).back();
  io::CheckpointContents contents = io::load_checkpoint(newest.path);
  std::string& state = contents.files.at("trainer_state.json");
  ASSERT_NE(state.find("\"ff\":"), std::string::npos);
  state.replace(state.find("\"ff\":"), 5, "\"ffn_width\":");
  const std::string run_id = io::load_json(path("a/train_config.json")).at("run").as_string();
  io::save_checkpoint(r.folder, newest.step, contents, run_id);
  r.should_stop = {};
  r.resume = true;
  EXPECT_EQ(train_masked_lm(r).ending, Ending::finished);
}

TEST_F(MaskedLmRunTest, BadInputIsNamed) {
  MaskedLmRun r = run("bad", "");
  r.settings.mask_share = 1;
  expect_error<ValueError>([&] { train_masked_lm(r); }, "--mask-share must be in (0, 1)");
  r = run("bad", ""), r.settings.batch = 0;
  expect_error<ValueError>([&] { train_masked_lm(r); }, "--batch must be at least 1");
  EXPECT_FALSE(std::filesystem::exists(root_ / "bad"));
  r = run("bad", ""), write("short.txt", "the cat"), r.data = path("short.txt");
  expect_error<FormatError>([&] { train_masked_lm(r); }, "short.txt");
  r = run("bad", ""), r.valid = path("text.txt");
  expect_error<ValueError>([&] { train_masked_lm(r); }, "train mlm: it takes no file of validation data");
  r = run("bad", "bert"), r.settings.max_length = 2;
  expect_error<ValueError>([&] { train_masked_lm(r); }, "no room beside the tokenizer's template");
}

}  // namespace
}  // namespace multihead::train
