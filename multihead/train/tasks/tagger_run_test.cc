#include "multihead/train/tasks/tagger_run.h"

#include <gmock/gmock.h>

#include <cmath>

#include "multihead/embed/token_classifier.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/encoder_run.h"

namespace multihead::train {
namespace {

using ::testing::ElementsAre;

class TaggerRunTest : public EncoderRunTest {
 protected:
  // Animals and colours in texts of other words.
  TaggerRunTest() { write("train.conll", texts(0)), write("valid.conll", texts(100)); }

  static std::string texts(uint64_t seed) {
    std::string all;
    for (uint64_t i = seed; i < seed + 40; ++i) {
      all += "the O\n" + std::string(i % 2 == 0 ? "cat B-ANIMAL\n" : "dog B-ANIMAL\n") + "sat O\non O\n";
      all += i % 3 == 0 ? "red B-PLACE\nsea I-PLACE\n" : "a O\nmat O\n";
      all += "\n";
    }
    return all;
  }

  TaggerRun run(const std::string& name) const {
    TaggerRun run;
    run.data = path("train.conll"), run.valid = path("valid.conll"), run.init = path("bert");
    run.folder = path(name);
    start_from(run.settings, run.init);
    TaggerSettings& s = run.settings;
    s.batch = 8, s.steps = 30, s.lr = 1e-2, s.warmup_steps = 3, s.eval_every = 5, s.log_every = 1;
    return run;
  }
};

TEST_F(TaggerRunTest, LearnsAndLeavesATaggerThatFindsTheEntities) {
  TaggerRun r = run("a");
  r.settings.steps = 90;
  const TaggerSummary summary = train_tagger(r);
  EXPECT_GT(summary.validation->f1, 0.95);
  EXPECT_EQ(summary.validation->entities, 40 + 13);
  EXPECT_THAT(summary.labels, ElementsAre("O", "B-ANIMAL", "I-ANIMAL", "B-PLACE", "I-PLACE"));
  const auto tagger = embed::TokenClassifier::load(path("a"));
  const std::vector<std::string> texts = {"the cat sat on red sea"};
  const auto found = tagger.entities(texts)[0];
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].label, "ANIMAL");
  EXPECT_EQ(found[1].label, "PLACE");
  EXPECT_EQ(found[1].place.begin, 15u);
  EXPECT_EQ(found[1].place.end, 22u);
  EXPECT_EQ(io::load_json(path("a/config.json")).at("architectures").at(0).as_string(),
            "BertForTokenClassification");
  EXPECT_NE(bytes("a/README.md").find("| f1 | "), std::string::npos);
}

TEST_F(TaggerRunTest, AnInterruptedRunGoesOnBitForBit) {
  TaggerRun r = run("");
  r.settings.steps = 12, r.settings.model.dropout_p = 0.1, r.settings.accumulate = 2;
  expect_resumes(r, train_tagger);
}

TEST_F(TaggerRunTest, TokensOfAnEntityBeginItOrGoOn) {
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  // "green" reaches over two words; "moon" is cut off.
  const std::vector<text::SpannedText> texts = {{"the red sea moon", {{{4, 11}, "P"}, {{12, 16}, "Q"}}, 1}};
  TaggerSettings s = run("").settings;
  s.max_length = 5;
  const TaggerData data = prepare_tagger_data(texts, {}, tokenizer, s);
  EXPECT_THAT(data.names, ElementsAre("O", "B-P", "I-P", "B-Q", "I-Q"));
  EXPECT_THAT(data.training.labels[0], ElementsAre(-100, 0, 1, 2, -100));
  EXPECT_THAT(data.notes,
              ElementsAre("1 training texts with entities: P 1, Q 1",
                          "1 training entities lie behind the first 5 tokens of their texts and are "
                          "not read (--max-length)"));
}

TEST_F(TaggerRunTest, EntitiesWithoutATokenOfTheirOwnAreNoneBehindTheLast) {
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  // Two within a token, and blanks within the text and behind it.
  const std::vector<text::SpannedText> texts = {{"sun on", {{{0, 1}, "P"}, {{1, 3}, "Q"}, {{3, 4}, "P"}}, 1},
                                                {"sun ", {{{3, 4}, "P"}}, 2}};
  const TaggerData data = prepare_tagger_data(texts, texts, tokenizer, run("").settings);
  EXPECT_THAT(data.notes, ElementsAre("2 training texts with entities: P 3, Q 1",
                                      "3 training entities have no token of their own and are not read",
                                      "3 validation entities have no token of their own and count as not "
                                      "found"));
}

// As `multihead eval` counts them.
TEST_F(TaggerRunTest, EntitiesThatAreNotReadAreNotFound) {
  TaggerSettings s = run("").settings;
  s.max_length = 4;
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  const std::vector<text::SpannedText> texts = {{"the cat", {{{4, 7}, "P"}}, 1},
                                                {"the red sea moon", {{{4, 7}, "P"}, {{12, 16}, "P"}}, 2}};
  const TaggerData data = prepare_tagger_data({texts[0]}, texts, tokenizer, s);
  EXPECT_THAT(data.notes, ElementsAre("1 training texts with entities: P 1",
                                      "1 validation entities lie behind the first 4 tokens of their texts "
                                      "and count as not found (--max-length)"));
  TaggerTask task(s, data, path("bert"));
  // Every token is found to be an entity's first one.
  for (nn::NamedTensor& p : nn::named_parameters(task.model())) {
    if (!p.name.starts_with("classifier")) continue;
    p.tensor.copy_from(p.name == "classifier.bias" ? Tensor::of<float>({3}, {0, 1, 0})
                                                   : Tensor::zeros(p.tensor.shape()));
  }
  const EntityScore all = *task.score(0), one = *task.score(1);
  EXPECT_EQ(all.entities, 3);
  EXPECT_DOUBLE_EQ(all.recall, 2.0 / 3);
  EXPECT_DOUBLE_EQ(all.precision, 0.5);
  EXPECT_EQ(one.entities, 1);
}

TEST_F(TaggerRunTest, AHeadWhoseNamesRepeatIsRefused) {
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  const std::vector<text::SpannedText> texts = {{"cat", {{{0, 3}, "P"}}, 1}};
  TaggerSettings s = run("").settings;
  s.model.head = models::EncoderHead::tokens, s.model.labels = {"x", "x", "O", "B-P", "I-P"};
  expect_error<FormatError>([&] { prepare_tagger_data(texts, {}, tokenizer, s); },
                            "labels 0 and 1 of the model are both called \"x\"");
}

TEST_F(TaggerRunTest, EntitiesThatComeFromNoFileAreChecked) {
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  const std::vector<text::SpannedText> good = {{"cat", {{{0, 3}, "P"}}, 1}},
                                       bad = {{"cat", {{{0, 3}, "P"}, {{2, 3}, "P"}}, 7}};
  expect_error<FormatError>([&] { prepare_tagger_data(good, bad, tokenizer, run("").settings); },
                            "the validation data: line 7: the entities \"P\" and \"P\" overlap");
}

TEST_F(TaggerRunTest, TheLossIsTheMeanOverTheTextsOwnTokens) {
  TaggerSettings s = run("").settings;
  s.model.dropout_p = s.model.attention_dropout_p = 0, s.batch = 2;
  const auto tokenizer = text::Tokenizer::load(path("bert"));
  const std::vector<text::SpannedText> texts = {{"cat", {{{0, 3}, "P"}}, 1}, {"red sea sun", {}, 2}};
  const TaggerData data = prepare_tagger_data(texts, {}, tokenizer, s);
  TaggerTask task(s, data, path("bert"));
  EXPECT_EQ(task.targets(0), 4);
  double nats = 0;
  for (size_t i = 0; i < 2; ++i) {
    const Tensor logits = task.model().logits(token_rows(data.training.texts, {static_cast<int64_t>(i)}));
    for (int64_t t = 1; t + 1 < logits.size(0); ++t) {
      double sum = 0;
      for (int64_t k = 0; k < 3; ++k) sum += std::exp(double{logits.data<float>()[t * 3 + k]});
      nats += std::log(sum) - logits.data<float>()[t * 3 + data.training.labels[i][static_cast<size_t>(t)]];
    }
  }
  EXPECT_NEAR(task.loss(0).value.item(), nats / 4, 1e-5);
}

TEST_F(TaggerRunTest, BadInputIsNamedAndLeavesNothing) {
  struct {
    const char *train, *why;
  } cases[] = {
      {"cat\n", "line 1: expected a word and its tag"},
      {"cat X\n", "a tag must be O, B-"},
      {"cat O\n", "no text of the training data has an entity"},
      {"cat B-\n", "line 1: a tag must be O, B-"},
      {"cat B-OTHER\n", "the label \"ANIMAL\", which the training data lacks"},
      {"{\"text\": \"cat\", \"entities\": [{\"start\": 0, \"end\": 9, \"label\": \"A\"}]}",
       "line 1: an entity must lie within the 3 characters"},
      {"{\"text\": \"cat\", \"entities\": [{\"start\": 0, \"end\": 2, \"label\": \"A\"}, {\"start\": 1, "
       "\"end\": 3, \"label\": \"B\"}]}",
       "line 1: the entities \"A\" and \"B\" overlap"}};
  for (const auto& c : cases) {
    write("bad.conll", c.train);
    TaggerRun r = run("bad");
    r.data = path("bad.conll");
    expect_error<FormatError>([&] { train_tagger(r); }, c.why);
    EXPECT_FALSE(std::filesystem::exists(root_ / "bad")) << c.train;
  }
}

}  // namespace
}  // namespace multihead::train
