#include "multihead/train/tasks/classifier_run.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "multihead/embed/text_classifier.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/encoder_run.h"

namespace multihead::train {
namespace {

using ::testing::ElementsAre;

class ClassifierRunTest : public EncoderRunTest {
 protected:
  ClassifierRunTest() {
    std::string train, valid;
    for (uint64_t i = 0; i < 60; ++i) {
      train += sentence(i, i % 3 * 5) + "\t" + kLabels[i % 3] + "\n";
      valid += sentence(i + 100, i % 3 * 5) + "\t" + kLabels[i % 3] + "\n";
    }
    write("train.tsv", train);
    write("valid.tsv", valid);
  }

  ClassifierRun run(const std::string& name) const {
    ClassifierRun run;
    run.data = path("train.tsv"), run.valid = path("valid.tsv"), run.init = path("bert");
    run.folder = path(name);
    start_from(run.settings, run.init);
    ClassifierSettings& s = run.settings;
    s.batch = 7, s.steps = 40, s.lr = 1e-2, s.warmup_steps = 4, s.eval_every = 5, s.log_every = 1;
    return run;
  }

  // The share of the validation texts whose label is the most probable one.
  double accuracy_of(const embed::TextClassifier& classifier) const {
    const text::LabelledTexts valid = text::read_labelled(root_ / "valid.tsv");
    const Tensor logits = classifier.logits(valid.texts);
    int64_t right = 0;
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const float* row = logits.data<float>() + i * 3;
      right += classifier.label(std::max_element(row, row + 3) - row) == valid.labels[static_cast<size_t>(i)];
    }
    return static_cast<double>(right) / 60;
  }

  static constexpr const char* kLabels[] = {"low", "mid", "high"};
};

TEST_F(ClassifierRunTest, LearnsAndLeavesAClassifierThatSaysWhatWasMeasured) {
  const ClassifierSummary summary = train_classifier(run("a"));
  ASSERT_TRUE(summary.validation);
  EXPECT_GT(summary.validation->accuracy, 0.7);
  EXPECT_GT(summary.validation->macro_f1, 0.7);
  EXPECT_THAT(summary.labels, ElementsAre("high", "low", "mid"));
  const auto classifier = embed::TextClassifier::load(path("a"));
  EXPECT_EQ(classifier.label(2), "mid");
  EXPECT_EQ(accuracy_of(classifier), summary.validation->accuracy);
  const Json config = io::load_json(path("a/config.json"));
  EXPECT_EQ(config.at("architectures").at(0).as_string(), "BertForSequenceClassification");
  EXPECT_EQ(config.at("label2id").at("mid").as_int(), 2);
  EXPECT_NE(bytes("a/metrics.jsonl").find("\"eval/macro_f1\":"), std::string::npos);
}

TEST_F(ClassifierRunTest, AnInterruptedRunGoesOnBitForBit) {
  ClassifierRun r = run("");
  r.settings.steps = 12, r.settings.model.dropout_p = 0.1, r.settings.accumulate = 2;
  expect_resumes(r, train_classifier);
}

// The step of a stop may be one that the run would have written, as its best, had it evaluated it.
TEST_F(ClassifierRunTest, AnInterruptedRunKeepsTheCheckpointsOfTheWhole) {
  ClassifierRun whole = run("whole");
  whole.settings.steps = 12, whole.settings.eval_every = 4, whole.settings.save_every = 5;
  whole.settings.keep = 3, whole.settings.eval_texts = 14;
  train_classifier(whole);
  EXPECT_THAT(steps_kept("whole"), ElementsAre(8, 10, 12));
  std::set<int64_t> stops;
  for (int64_t stop = 11; stop < 16; ++stop) {
    ClassifierRun half = whole;
    half.folder = path(concat("half-", stop));
    int64_t asked = 0;
    half.should_stop = [&] { return ++asked > stop; };
    ASSERT_EQ(train_classifier(half).ending, Ending::interrupted);
    stops.insert(steps_kept(concat("half-", stop)).back());
    half.should_stop = {}, half.resume = true;
    train_classifier(half);
    EXPECT_EQ(steps_kept(concat("half-", stop)), steps_kept("whole")) << stop;
    EXPECT_TRUE(bytes(concat("half-", stop) + "/model.safetensors") == bytes("whole/model.safetensors"))
        << stop;
  }
  EXPECT_THAT(stops, testing::Contains(8));
}

TEST_F(ClassifierRunTest, AFrozenEncoderKeepsItsWeights) {
  ClassifierRun r = run("a");
  r.settings.freeze = true, r.settings.model.dropout_p = 0.1;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_EQ(summary.parameters, 3 * 20 + 3);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
  models::Encoder before = models::load_encoder(path("bert")), after = models::load_encoder(path("a"));
  std::map<std::string, std::vector<float>> kept;
  for (const auto& p : nn::named_parameters(before)) kept[p.name] = p.tensor.to_vector<float>();
  for (const auto& p : nn::named_parameters(after)) {
    if (p.name.starts_with("classifier")) continue;
    EXPECT_EQ(p.tensor.to_vector<float>(), kept[p.name]) << p.name;
  }
  // It made a head for these labels: nothing is new any more, and training it goes on from there.
  r.init = path("a"), r.folder = path("b");
  start_from(r.settings, r.init);
  expect_error<ValueError>([&] { train_classifier(r); }, "--freeze leaves nothing to train");
  r.settings.freeze = false, r.settings.steps = 1, r.settings.lr = 1e-30, r.overwrite = true;
  EXPECT_EQ(train_classifier(r).progress.first_loss, summary.validation->loss());
}

TEST_F(ClassifierRunTest, ARunThatHasEndedGoesOnToMoreSteps) {
  ClassifierRun r = run("a");
  r.settings.steps = 6;
  train_classifier(r);
  r.settings.steps = 12, r.resume = true;
  expect_error<ValueError>([&] { train_classifier(r); }, "steps was 6, is now 12");
  r.extends = true, r.settings.eval_texts = 9;
  expect_error<ValueError>([&] { train_classifier(r); }, "eval_texts was 0, is now 9");
  r.settings.eval_texts = 0;
  const int64_t warmup = std::exchange(r.settings.warmup_steps, 5);
  EXPECT_EQ(train_classifier(r).progress.step, 12);
  r.settings.warmup_steps = warmup;  // of as many steps it is another run
  expect_error<ValueError>([&] { train_classifier(r); }, "warmup was 5, is now ");
  EXPECT_EQ(io::load_json(path("a/summary.json")).at("progress").at("step").as_int(), 12);
}

// What was best is compared with what comes by the same figure on the same texts.
TEST_F(ClassifierRunTest, TheBestOfOtherTextsOrByAnotherFigureIsNotTakenForOne) {
  ClassifierRun r = run("a");
  r.settings.steps = 10, r.settings.best = "accuracy";
  train_classifier(r);
  r.resume = r.extends = true, r.settings.steps = 20;
  std::filesystem::copy_file(root_ / "train.tsv", root_ / "other.tsv");
  r.valid = path("other.tsv");
  expect_error<ValueError>([&] { train_classifier(r); }, "other settings: validation was ");
  r.valid = path("valid.tsv"), r.settings.best = "macro_f1";
  double best = 0;
  struct Highest : Observer {
    explicit Highest(double& best) : best(best) {}
    void on_evaluation(const EvalReport& e) override {
      const double now = e.metrics.at(1).second;
      ASSERT_EQ(e.metrics.at(1).first, "macro_f1");
      EXPECT_TRUE(!e.is_best || now > best) << now << " is not above " << best;
      best = std::max(best, now);
    }
    double& best;
  } highest(best);
  const Json state = io::load_json(path("a/checkpoint-10/trainer_state.json")).at("progress");
  best = state.at("best_figures").at("macro_f1").as_double();
  r.observers = {&highest};
  train_classifier(r);
}

// Killed before the first checkpoint of the new length, and after.
TEST_F(ClassifierRunTest, ARunThatWasExtendedIsResumedByItsRecord) {
  const auto recorded = [&] {
    return io::load_json(path("a/train_config.json")).at("settings").at("steps").as_int();
  };
  ClassifierRun r = run("a");
  r.settings.steps = 6;
  train_classifier(r);
  const std::string run_id = io::load_json(path("a/train_config.json")).at("run").as_string();
  r.resume = r.extends = true, r.settings.steps = 3;
  expect_error<ValueError>([&] { train_classifier(r); }, "is beyond the 3 steps requested");
  EXPECT_EQ(recorded(), 6);
  struct Killed {};
  struct Killer : Observer {
    void on_step(const StepReport&) override { throw Killed(); }
  } killer;
  r.settings.steps = 12, r.observers = {&killer};
  EXPECT_THROW(train_classifier(r), Killed);
  EXPECT_EQ(recorded(), 12);
  r.extends = false, r.observers.clear();
  EXPECT_EQ(train_classifier(r).progress.step, 12);
  EXPECT_EQ(train_classifier(r).progress.step, 12);
  EXPECT_EQ(io::load_json(path("a/train_config.json")).at("run").as_string(), run_id);
  r.settings.steps = 6;
  expect_error<ValueError>([&] { train_classifier(r); }, "steps was 12, is now 6");
}

TEST_F(ClassifierRunTest, WhatIsNotGivenIsChosenAndSaid) {
  struct Listener : Observer {
    void on_note(const std::string& message) override { all += message + "\n"; }
    void on_warning(const std::string& message) override { all += message + "\n"; }
    std::string all;
  } listener;
  ClassifierRun r = run("a");
  std::string rows;
  for (const char letter : bytes("train.tsv") + sentence(100, 0) + "\t LOW\n")
    rows += letter == '\n' ? "\tx\n" : std::string(1, letter);
  write("train.tsv", "text\tlabel\tsource\n" + rows);
  r.settings = {};
  start_from(r.settings, r.init);
  r.settings.epochs = 0.5, r.observers = {&listener};
  train_classifier(r);
  const Json record = io::load_json(path("a/train_config.json")).at("settings");
  EXPECT_EQ(record.at("steps").as_int(), 1);  // half of 61 texts by 32
  EXPECT_EQ(record.at("lr").as_double(), 2e-4);
  for (const char* said : {"train.tsv: columns that are not used: source",
                           "61 training texts, 4 labels: high 20, low 20, mid 20, LOW 1",
                           "\"low\" and \"LOW\" (1 texts) differ in capital letters",
                           "60 validation texts; \"high\" for all of them would have an accuracy of 0.33",
                           "1 step, adamw, linear rate 0.0002", "new, with random weights: classifier"}) {
    EXPECT_NE(listener.all.find(said), std::string::npos) << said << "\n" << listener.all;
  }
}

TEST_F(ClassifierRunTest, TheResultReadsAsManyTokensAsItWasTrainedOn) {
  ClassifierRun r = run("a");
  r.settings.steps = 1, r.settings.max_length = 5;
  train_classifier(r);
  EXPECT_EQ(embed::TextClassifier::load(path("a")).max_length(), 5);
  const std::string text = sentence(1, 0) + " " + sentence(2, 5) + " " + sentence(3, 5);
  const auto classifier = embed::TextClassifier::load(path("a"));
  const std::vector<std::string> texts = {text};
  EXPECT_EQ(classifier.logits(texts).to_vector<float>(),
            classifier.logits(texts, {.max_length = 5}).to_vector<float>());
  EXPECT_NE(classifier.logits(texts).to_vector<float>(),
            classifier.logits(texts, {.max_length = 8}).to_vector<float>());
}

TEST_F(ClassifierRunTest, NumbersAreNoNamesUnlessTheyAreSaidToBe) {
  write("train.tsv", "a\t1.5\nb\t2.5\n");
  ClassifierRun r = run("a");
  r.valid = "", r.settings.steps = 1;
  expect_error<FormatError>([&] { train_classifier(r); },
                            "give --regression true to predict the numbers, --labels-as-names true if");
  r.settings.labels_as_names = true;
  EXPECT_THAT(train_classifier(r).labels, ElementsAre("1.5", "2.5"));
}

TEST_F(ClassifierRunTest, StopsEarly) {
  ClassifierRun r = run("a");
  r.settings.lr = 1e-30, r.settings.patience = 2;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_EQ(summary.ending, Ending::stopped_early);
  EXPECT_EQ(summary.progress.step, 10);
}

TEST_F(ClassifierRunTest, PairsAreOneSequence) {
  std::string pairs;
  for (uint64_t i = 0; i < 40; ++i)
    pairs += sentence(i, 0) + "\t" + sentence(i, i % 2 * 5) + "\t" + kLabels[i % 2] + "\n";
  write("train.tsv", pairs);
  ClassifierRun r = run("a");
  r.valid = "";
  EXPECT_FALSE(train_classifier(r).validation);
  EXPECT_LT(io::load_json(path("a/summary.json")).at("progress").at("tokens").as_int(), 40 * 7 * 40);
  r.valid = path("valid.tsv"), r.overwrite = true;
  expect_error<FormatError>([&] { train_classifier(r); }, "only the training data has pairs");
}

TEST_F(ClassifierRunTest, BadInputIsNamedAndLeavesNothing) {
  ClassifierRun r = run("bad");
  write("one.tsv", "a\tx\nb\tx\n");
  r.data = path("one.tsv");
  expect_error<FormatError>([&] { train_classifier(r); }, "all texts have the label \"x\"");
  r = run("bad"), write("valid.tsv", "a\tnew\n");
  expect_error<FormatError>([&] { train_classifier(r); }, "the label \"new\"");
  r = run("bad"), r.data = path("none.tsv");
  expect_error<IoError>([&] { train_classifier(r); }, "none.tsv");
  r = run("bad"), r.settings.batch = 0;
  expect_error<ValueError>([&] { train_classifier(r); }, "--batch must be at least 1");
  r = run("bad"), r.init = "";
  expect_error<ValueError>([&] { train_classifier(r); }, "needs its folder, init");
  r = run("bad"), r.tokenizer = path("bert");
  expect_error<ValueError>([&] { train_classifier(r); }, "train classifier: it takes the tokenizer of init");
  EXPECT_FALSE(std::filesystem::exists(root_ / "bad"));
}

TEST_F(ClassifierRunTest, AHeadAloneIsFittedToTheFoldersOwnVectors) {
  ClassifierRun r = run("head");
  r.settings = {};
  start_from(r.settings, r.init);
  r.settings.head_only = true, r.settings.head_c = 10;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_EQ(summary.ending, Ending::finished);
  EXPECT_EQ(summary.parameters, 3 * 20 + 3);
  EXPECT_GT(summary.validation->accuracy, 0.8);
  EXPECT_NEAR(summary.progress.first_loss, std::log(3), 1e-6);
  EXPECT_FALSE(summary.worse_than_start);
  EXPECT_EQ(merit("accuracy", 0, summary.kept_figures), summary.validation->accuracy);
  EXPECT_LT(merit("accuracy", 0, summary.progress.first_figures), summary.validation->accuracy);
  ASSERT_TRUE(embed::has_linear_head(path("head")));
  const auto classifier = embed::TextClassifier::load(path("head"));
  EXPECT_EQ(classifier.label(2), "mid");
  EXPECT_EQ(accuracy_of(classifier), summary.validation->accuracy);
  const text::LabelledTexts valid = text::read_labelled(root_ / "valid.tsv");
  const Tensor logits = classifier.logits(valid.texts);
  // The vectors are those of the encoder as it was, and so are its weights.
  const auto with = embed::SentenceEncoder::load_to_train(path("head"));
  EXPECT_EQ(with.encode(valid.texts).to_vector<float>(), logits.to_vector<float>());
  auto before = with;
  before.drop_head();
  EXPECT_EQ(before.encode(valid.texts).to_vector<float>(),
            embed::SentenceEncoder::load_to_train(r.init).encode(valid.texts).to_vector<float>());
  expect_error<ValueError>([&] { classifier.logits(std::vector<embed::TextPair>{{"a", "b"}}); }, "not pairs");
  // The same again, from a head of its own, and over itself.
  r.init = path("head"), r.folder = path("again");
  train_classifier(r);
  EXPECT_TRUE(bytes("again/2_Dense/model.safetensors") == bytes("head/2_Dense/model.safetensors"));
  r.overwrite = true;
  EXPECT_EQ(train_classifier(r).validation->accuracy, summary.validation->accuracy);
  // Other labels than those it has learned.
  std::string turned;
  for (uint64_t i = 0; i < 60; ++i) turned += sentence(i, i % 3 * 5) + "\t" + kLabels[(i + 1) % 3] + "\n";
  write("turned.tsv", turned);
  r.valid = path("turned.tsv");
  EXPECT_TRUE(train_classifier(r).worse_than_start);
}

TEST_F(ClassifierRunTest, AHeadAloneOfSeveralLabelsOrNumbers) {
  std::string several, numbers;
  for (uint64_t i = 0; i < 60; ++i) {
    several += sentence(i, i % 2 * 5) + "\t" + (i % 2 == 0 ? "a, b" : "b") + "\n";
    numbers += sentence(i, i % 3 * 5) + "\t" + std::to_string(i % 3 * 100) + ".5\n";
  }
  write("several.tsv", several), write("numbers.tsv", numbers);
  ClassifierRun r = run("several");
  r.settings = {};
  start_from(r.settings, r.init);
  r.data = r.valid = path("several.tsv"), r.settings.head_only = true, r.settings.multi_label = true;
  ClassifierSummary summary = train_classifier(r);
  EXPECT_GT(summary.validation->micro_f1, 0.95);
  auto classifier = embed::TextClassifier::load(path("several"));
  EXPECT_EQ(classifier.problem_type(), models::ProblemType::multi_label);
  EXPECT_EQ(classifier.label(1), "b");
  r.folder = path("numbers"), r.data = r.valid = path("numbers.tsv");
  r.settings.multi_label = false, r.settings.regression = true;
  summary = train_classifier(r);
  EXPECT_GT(summary.validation->pearson, 0.7);
  EXPECT_LT(summary.validation->loss(), 0.3 * summary.progress.first_loss);
  classifier = embed::TextClassifier::load(path("numbers"));
  EXPECT_EQ(classifier.num_labels(), 1);
  const Tensor logits = classifier.logits(text::read_labelled(root_ / "numbers.tsv").texts);
  EXPECT_EQ(classifier.scores(logits).to_vector<float>(), logits.to_vector<float>());
}

TEST_F(ClassifierRunTest, AHeadAloneRefusesWhatItDoesNotUse) {
  ClassifierRun r = run("bad");
  r.settings.head_only = true;
  r.given = {"data", "head_only", "steps"};
  expect_error<ValueError>([&] { train_classifier(r); }, "--steps has no effect with --head-only");
  r.given = {}, write("pairs.tsv", "a\tb\tx\nb\ta\ty\n");
  r.data = path("pairs.tsv"), r.valid = "";
  expect_error<ValueError>([&] { train_classifier(r); }, "single texts, not pairs");
  r = run("bad"), r.settings.head_c = 1;
  expect_error<ValueError>([&] { train_classifier(r); }, "--head-c has an effect only with --head-only");
  EXPECT_FALSE(std::filesystem::exists(root_ / "bad"));
  r = run("bad"), r.settings.head_only = true, r.should_stop = [] { return true; };
  EXPECT_EQ(train_classifier(r).ending, Ending::interrupted);
  EXPECT_FALSE(std::filesystem::exists(root_ / "bad/config.json"));
  r.should_stop = {}, r.resume = true;  // begins again
  EXPECT_EQ(train_classifier(r).ending, Ending::finished);
  r = run("steps"), r.settings.steps = 1;
  train_classifier(r);
  r.settings.head_only = true, r.resume = true;
  expect_error<ValueError>([&] { train_classifier(r); }, "checkpoints of a run without --head-only");
}

TEST_F(ClassifierRunTest, SeveralLabelsHaveALogitEach) {
  std::string rows;
  for (uint64_t i = 0; i < 60; ++i) {
    const std::string text = sentence(i, i % 3 * 5);
    rows += "{\"text\": \"" + text +
            "\", \"labels\": " + std::vector<std::string>{"[]", "[\"a\"]", "[\"a\", \"b\"]"}[i % 3] + "}\n";
  }
  write("several.jsonl", rows);
  ClassifierRun r = run("a");
  r.data = r.valid = path("several.jsonl");
  expect_error<FormatError>([&] { train_classifier(r); }, "line 1 of the training data has a list of labels");
  r.settings.multi_label = true;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_THAT(summary.labels, ElementsAre("a", "b"));
  EXPECT_GT(summary.validation->micro_f1, 0.8);
  EXPECT_GT(summary.validation->accuracy, 0.6);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
  EXPECT_NE(bytes("a/metrics.jsonl").find("\"eval/micro_f1\":"), std::string::npos);
  const auto classifier = embed::TextClassifier::load(path("a"));
  EXPECT_EQ(classifier.problem_type(), models::ProblemType::multi_label);
  // Its head goes on with several labels, not with one of them.
  r.init = path("a"), r.folder = path("b"), r.settings.steps = 1, r.settings.lr = 1e-30;
  start_from(r.settings, r.init);
  r.settings.steps = 1, r.settings.lr = 1e-30, r.settings.multi_label = true;
  EXPECT_NEAR(train_classifier(r).progress.first_loss, summary.validation->loss(), 1e-6);
  write("one.tsv", "cat\ta\ndog\tb\n");
  r.data = path("one.tsv"), r.valid = "", r.folder = path("c"), r.settings.multi_label = false;
  r.settings.freeze = true;
  EXPECT_EQ(train_classifier(r).parameters, 2 * 20 + 2);
}

TEST_F(ClassifierRunTest, NumbersAreLearnedByTheirSquaredErrors) {
  std::string rows;
  for (uint64_t i = 0; i < 60; ++i) rows += sentence(i, i % 3 * 5) + "\t" + std::to_string(i % 3) + ".25\n";
  write("numbers.tsv", rows);
  ClassifierRun r = run("a");
  r.data = r.valid = path("numbers.tsv"), r.settings.regression = true, r.settings.best = "pearson";
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_THAT(summary.labels, ElementsAre("LABEL_0"));
  EXPECT_LT(summary.validation->loss(), 0.2);
  EXPECT_GT(summary.validation->pearson, 0.8);
  EXPECT_EQ(io::load_json(path("a/config.json")).at("problem_type").as_string(), "regression");
  write("numbers.tsv", "cat\t1\ndog\tlarge\n");
  r.folder = path("b");
  expect_error<FormatError>([&] { train_classifier(r); },
                            "line 2 of the training data: with --regression a label must be a number");
  EXPECT_FALSE(std::filesystem::exists(root_ / "b"));
}

TEST_F(ClassifierRunTest, RunsFromBeforeThereWereNumbersGoOn) {
  ClassifierRun r = run("a");
  r.settings.steps = 4;
  int64_t asked = 0;
  r.should_stop = [&] { return ++asked > 2; };
  ASSERT_EQ(train_classifier(r).ending, Ending::interrupted);
  const io::CheckpointInfo last = io::list_checkpoints(path("a")).back();
  io::CheckpointContents contents = io::load_checkpoint(last.path);
  std::string& state = contents.files.at("trainer_state.json");
  Json json = Json::parse(state);
  for (const char* name : {"regression", "multi_label"}) {
    EXPECT_TRUE(json["identity"].contains(name));
    json["identity"].erase(name);
  }
  state = json.dump(2) + "\n";
  std::filesystem::remove_all(last.path);
  io::save_checkpoint(path("a"), last.step, contents,
                      io::load_json(path("a/train_config.json")).at("run").as_string());
  r.should_stop = {}, r.resume = true;
  EXPECT_EQ(train_classifier(r).ending, Ending::finished);
}

TEST(ScoreLabels, FIsTheMeanOverLabelsThatOccur) {
  const LabelScore score = score_labels({0, 0, 1, 1}, {0, 1, 1, 1}, 4);
  EXPECT_DOUBLE_EQ(score.accuracy, 0.75);
  EXPECT_DOUBLE_EQ(score.macro_f1, (2.0 / 3 + 4.0 / 5) / 2);
}

TEST(WithHead, IsWhatTransformersMakesOfAFamily) {
  const std::filesystem::path data = std::filesystem::path(MULTIHEAD_SOURCE_DIR) / "tests/data/encoders";
  for (const char* name : {"bert", "distilbert", "electra", "modernbert", "mpnet", "roberta"}) {
    const models::EncoderConfig config = models::load_encoder((data / name).string()).config();
    for (const auto head : {models::EncoderHead::classification, models::EncoderHead::tokens}) {
      const models::EncoderConfig with = models::with_head(config, head, {"a", "b", "c"});
      EXPECT_EQ(with.num_labels, 3) << name;
      EXPECT_EQ(models::family_of(with), models::family_of(config)) << name;
      Rng rng(1);
      models::Encoder model(with, rng);
      EXPECT_NO_THROW(models::encoder_tensors(model)) << name;
    }
    const models::EncoderConfig masked = models::with_head(config, models::EncoderHead::masked_lm);
    EXPECT_EQ(models::family_of(masked), models::family_of(config)) << name;
    EXPECT_EQ(models::with_head(masked, models::EncoderHead::masked_lm), masked) << name;
  }
}

}  // namespace
}  // namespace multihead::train
