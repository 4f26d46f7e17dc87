#include "multihead/train/tasks/language_model_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/encode_file.h"
#include "multihead/train/metrics.h"

namespace multihead::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class LanguageModelRunTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("multihead_run_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::ofstream(root_ / "text.txt") << text();
  }
  void TearDown() override { fs::remove_all(root_); }

  // Words in an order that a model can learn something of.
  static std::string text() {
    const char* words[] = {"the", "cat", "sat", "on", "a", "mat", "and", "saw", "nine", "dogs", "run"};
    std::string out;
    uint64_t state = 1;
    for (int i = 0; i < 3000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      out += words[(static_cast<size_t>(i) + (state >> 62)) % 11];
      out += i % 9 == 8 ? ".\n" : " ";
    }
    return out;
  }

  static LanguageModelSettings small() {
    LanguageModelSettings s;
    s.model.num_layers = 2, s.model.num_heads = 2, s.model.embed_dim = 20, s.model.context = 17;
    s.model.dropout_p = s.model.attention_dropout_p = 0.1;
    s.tokenizer = TokenizerChoice::characters;
    s.steps = 23, s.batch = 3, s.lr = 5e-3, s.warmup_steps = 5;
    s.log_every = 2, s.eval_every = 6, s.eval_windows = 7, s.accumulate = 2;
    return s;
  }

  LanguageModelRun run(const std::string& name, const LanguageModelSettings& settings = small()) const {
    return {{.data = (root_ / "text.txt").string(), .tokenizer = {}, .folder = (root_ / name).string()},
            settings};
  }
  std::string file(const std::string& name) const { return read_file((root_ / name).string()); }

  fs::path root_;
};

std::string weights(const LanguageModelRun& run) { return read_file(run.folder + "/model.safetensors"); }

// Stops when it is asked whether to for the given time, between steps or inside an evaluation.
LanguageModelSummary stopped_at(LanguageModelRun run, int64_t question) {
  int64_t asked = 0;
  run.should_stop = [&] { return asked++ >= question; };
  return train_language_model(run);
}

TEST_F(LanguageModelRunTest, LearnsAndLeavesAModel) {
  LanguageModelSettings settings = small();
  settings.steps = 60;
  const LanguageModelRun r = run("a", settings);
  const LanguageModelSummary summary = train_language_model(r);
  EXPECT_EQ(summary.ending, Ending::finished);
  EXPECT_LT(summary.progress.last_loss, summary.progress.first_loss - 0.5);
  EXPECT_EQ(summary.progress.tokens, 60 * 2 * 3 * 17);
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "summary.json", "metrics.csv"}) {
    EXPECT_TRUE(fs::exists(fs::path(r.folder) / name)) << name;
  }
  // The folder holds the model that was measured.
  models::LanguageModel model = models::load_language_model(r.folder);
  const auto tokenizer = text::Tokenizer::load(r.folder);
  const LanguageModelData data = prepare_language_model_data(text(), "text", settings, &tokenizer);
  const TextLoss again = evaluate(model, data.validation, {.batch = settings.batch}, &tokenizer);
  ASSERT_TRUE(summary.validation);
  EXPECT_EQ(again.nats, summary.validation->nats);
  EXPECT_EQ(again.characters, data.validation.size() - 1);
  EXPECT_EQ(io::load_json(r.folder + "/summary.json").at("validation").at("loss").as_double(), again.loss());
}

TEST_F(LanguageModelRunTest, ResumesBitForBit) {
  const LanguageModelRun whole = run("whole");
  train_language_model(whole);
  for (const int64_t split : {1, 7, 11, 30}) {  // 10 to 12 lie in the evaluation of step 6
    LanguageModelRun parts = run("split" + std::to_string(split));
    EXPECT_EQ(stopped_at(parts, split).ending, Ending::interrupted);
    EXPECT_FALSE(fs::exists(parts.folder + "/model.safetensors"));
    parts.resume = true;
    EXPECT_EQ(train_language_model(parts).ending, Ending::finished);
    EXPECT_EQ(weights(parts), weights(whole)) << "split at question " << split;
    const auto name = "/checkpoint-23/optimizer.safetensors";
    EXPECT_EQ(read_file(parts.folder + name), read_file(whole.folder + name));
  }
  // The comparison can fail: another seed, and the same run without the optimiser's moments.
  LanguageModelSettings other = small();
  other.seed = 4;
  const LanguageModelRun different = run("different", other);
  train_language_model(different);
  EXPECT_NE(weights(different), weights(whole));
}

TEST_F(LanguageModelRunTest, ResumingWithOtherSettingsIsRefused) {
  LanguageModelRun r = run("a");
  stopped_at(r, 7);
  r.resume = true;
  LanguageModelRun other = r;
  other.settings.lr = 0.25;
  other.settings.model.embed_dim = 24;
  EXPECT_THAT([&] { train_language_model(other); },
              ThrowsMessage<ValueError>(testing::AllOf(HasSubstr("width was 20, is now 24"),
                                                       HasSubstr("lr was 0.005, is now 0.25"))));
  std::ofstream(root_ / "text.txt", std::ios::app) << "the cat.";
  EXPECT_THAT([&] { train_language_model(r); }, ThrowsMessage<ValueError>(HasSubstr("text was")));
}

TEST_F(LanguageModelRunTest, AnEarlierRunIsKeptUnlessToldOtherwise) {
  LanguageModelRun r = run("a");
  train_language_model(r);
  EXPECT_THAT([&] { train_language_model(r); },
              ThrowsMessage<ValueError>(HasSubstr("holds a run of 23 steps")));
  r.overwrite = true;
  EXPECT_EQ(train_language_model(r).progress.step, 23);
}

TEST_F(LanguageModelRunTest, DamagedCheckpointIsNamed) {
  LanguageModelRun r = run("a");
  stopped_at(r, 8);
  const std::string path = r.folder + "/checkpoint-5/optimizer.safetensors";
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(path, std::ios::binary) << bytes;
  r.resume = true;
  EXPECT_THAT([&] { train_language_model(r); },
              ThrowsMessage<FormatError>(HasSubstr("optimizer.safetensors")));
}

// A checkpoint whose every byte is signed may still say nonsense.
TEST_F(LanguageModelRunTest, CountersOfACheckpointAreChecked) {
  LanguageModelRun r = run("a");
  stopped_at(r, 8);
  r.resume = true;
  const io::CheckpointInfo newest = io::list_checkpoints(r.folder).back();
  const io::CheckpointContents saved = io::load_checkpoint(newest.path);
  const Json state = Json::parse(saved.files.at("trainer_state.json"));
  const auto refused = [&](const std::string& field, const Json& changed, const std::string& words) {
    io::CheckpointContents contents = saved;
    contents.files["trainer_state.json"] = changed.dump();
    fs::remove_all(newest.path);
    io::save_checkpoint(r.folder, newest.step, contents, newest.run);
    EXPECT_THAT([&] { train_language_model(r); },
                ThrowsMessage<FormatError>(
                    testing::AllOf(HasSubstr("trainer_state.json"), HasSubstr(field), HasSubstr(words))))
        << field;
  };
  const std::vector<Json> bad = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), -2,
                                 "7", 1.5};
  for (const char* field : {"step", "tokens", "best_step", "evaluations_since_best"}) {
    for (const Json& value : bad) {
      Json changed = state;
      changed["progress"][field] = value;
      refused(concat("\"progress.", field, "\""), changed,
              concat("got ", value.is_string() ? "\"7\"" : value.dump()));
    }
  }
  for (const Json& value : bad) {
    Json changed = state;
    changed["evaluated_step"] = value;
    refused("\"evaluated_step\"", changed, "must be an integer in [-1, ");
  }
  Json changed = state;
  changed["progress"].erase("tokens");
  refused("\"progress.tokens\"", changed, "is missing");
  changed = state;
  changed["identity"] = 3;
  refused("\"identity\"", changed, "must be an object");
}

TEST_F(LanguageModelRunTest, APerplexityBeyondAllNumbersIsNull) {
  MetricsWriter metrics(root_.string(), nullptr);
  metrics.on_start(0, 10);
  metrics.on_evaluation({.step = 4, .loss = 800});
  metrics.on_step({.step = 5, .loss = 2, .grad_norm = std::numeric_limits<double>::infinity()});
  const std::string lines = read_file((root_ / "metrics.jsonl").string());
  EXPECT_THAT(lines, HasSubstr(R"({"step":4,"eval/loss":800.0,"eval/perplexity":null})"));
  EXPECT_THAT(lines, HasSubstr(R"("train/grad_norm":null)"));
  EXPECT_THAT(read_file((root_ / "metrics.csv").string()), HasSubstr("4,,,,,,,800.0,\n"));
}

TEST_F(LanguageModelRunTest, PathsNeedNotBeText) {
  fs::rename(root_ / "text.txt", root_ / "t\xe9xt.txt");
  LanguageModelRun r =
      run("r\xff"
          "n");
  r.data = (root_ / "t\xe9xt.txt").string();
  stopped_at(r, 7);
  r.resume = true;
  EXPECT_EQ(train_language_model(r).progress.step, 23);
  const Json record = io::load_json(r.folder + "/" + kRunFile);
  EXPECT_EQ(io::path_from_json(record.at("data")), r.data);
  EXPECT_EQ(io::path_from_json("plain"), "plain");
  EXPECT_THROW(io::path_from_json(Json::object({{"base16", "7"}})), FormatError);
}

TEST_F(LanguageModelRunTest, TwoRunsInOneFolderAreRefused) {
  const LanguageModelRun r = run("a");
  const FolderLock lock(r.folder);
  EXPECT_THAT([&] { train_language_model(r); }, ThrowsMessage<IoError>(HasSubstr("in use")));
}

TEST_F(LanguageModelRunTest, WeightsHaveTheSameBitsOnAnyNumberOfThreads) {
  LanguageModelSettings settings = small();
  settings.steps = 50;
  const int before = num_threads();
  std::string first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const LanguageModelRun r = run("threads" + std::to_string(threads), settings);
    train_language_model(r);
    if (first.empty()) first = weights(r);
    EXPECT_EQ(weights(r), first) << threads << " threads";
  }
  set_num_threads(before);
}

// 50 steps: the losses of f32 within 1 %, and its promises.
TEST_F(LanguageModelRunTest, Bf16LearnsAsF32AndKeepsItsBits) {
  LanguageModelSettings settings = small();
  settings.model.norm = nn::NormKind::rms, settings.model.gated = true;
  settings.steps = 50, settings.eval_every = 10;
  const LanguageModelSummary f32 = train_language_model(run("f32", settings));
  settings.precision = Precision::bf16;
  const int before = num_threads();
  std::string first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const LanguageModelRun r = run("threads" + std::to_string(threads), settings);
    const LanguageModelSummary bf16 = train_language_model(r);
    EXPECT_NEAR(bf16.progress.last_loss, f32.progress.last_loss, 0.01 * f32.progress.last_loss);
    if (first.empty()) first = weights(r);
    EXPECT_EQ(weights(r), first) << threads << " threads";
  }
  set_num_threads(before);
  EXPECT_NE(first, weights(run("f32")));
  LanguageModelRun parts = run("parts", settings);
  EXPECT_EQ(stopped_at(parts, 19).ending, Ending::interrupted);
  parts.resume = true;
  parts.settings.precision = Precision::f32;
  EXPECT_THAT([&] { train_language_model(parts); }, ThrowsMessage<ValueError>(HasSubstr("precision")));
  parts.settings.precision = Precision::bf16;
  train_language_model(parts);
  EXPECT_EQ(weights(parts), first);
  EXPECT_EQ(models::load_language_model(parts.folder).head_weight.dtype(), Dtype::f32);
}

TEST_F(LanguageModelRunTest, MetricsSurviveAKillWithoutDoubles) {
  LanguageModelRun r = run("a");
  stopped_at(r, 12);
  // A killed process wrote these lines after its checkpoint, the last line cut short.
  std::ofstream(r.folder + "/metrics.jsonl", std::ios::app)
      << "{\"step\":14,\"train/loss\":99.0}\n{\"step\":16,\"tra";
  r.resume = true;
  train_language_model(r);
  std::ifstream in(r.folder + "/metrics.jsonl");
  std::vector<int64_t> train_steps, eval_steps;
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line);
    (json.contains("train/loss") ? train_steps : eval_steps).push_back(json.at("step").as_int());
    EXPECT_EQ(line.find("\"train/loss\":99.0"), std::string::npos);
  }
  EXPECT_THAT(train_steps, testing::ElementsAre(2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 23));
  EXPECT_THAT(eval_steps, testing::ElementsAre(0, 6, 12, 18, 23));
  std::ifstream csv(r.folder + "/metrics.csv");
  int lines = 0;
  for (std::string line; std::getline(csv, line); ++lines)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 8);
  EXPECT_EQ(lines, 1 + 12 + 5);
}

TEST_F(LanguageModelRunTest, CheckpointsAreKeptByCountAndBest) {
  LanguageModelSettings settings = small();
  settings.steps = 30, settings.eval_every = 5, settings.keep = 2;
  const LanguageModelRun r = run("a", settings);
  const LanguageModelSummary summary = train_language_model(r);
  std::set<int64_t> kept, expected = {25, 30, summary.progress.best_step};
  for (const io::CheckpointInfo& info : io::list_checkpoints(r.folder)) kept.insert(info.step);
  EXPECT_EQ(kept, expected);
}

// A learning rate that wrecks the model: patience ends the run and the best weights are what is left.
TEST_F(LanguageModelRunTest, StopsEarlyWithTheBestWeights) {
  LanguageModelSettings settings = small();
  settings.steps = 400, settings.eval_every = 4, settings.patience = 3;
  settings.schedule = optim::ScheduleKind::constant, settings.lr = 0.5, settings.warmup_steps = 12;
  const LanguageModelRun r = run("a", settings);
  const LanguageModelSummary summary = train_language_model(r);
  EXPECT_EQ(summary.ending, Ending::stopped_early);
  EXPECT_LT(summary.progress.step, 400);
  EXPECT_LT(summary.progress.best_loss, summary.progress.last_loss);
  const std::string best = io::checkpoint_path(r.folder, summary.progress.best_step);
  EXPECT_EQ(weights(r), read_file(best + "/model.safetensors"));
}

TEST_F(LanguageModelRunTest, BadTextsAreRefused) {
  auto refused = [&](const std::string& content, const std::string& message) {
    std::ofstream(root_ / "text.txt", std::ios::binary) << content;
    EXPECT_THAT([&] { train_language_model(run("bad")); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  };
  refused("", "empty");
  refused(std::string("abc\0def", 7), "NUL");
  refused("good \xff\xfe bad", "UTF-8");
  refused("short", "more than one context of 17");
  fs::remove(root_ / "text.txt");
  EXPECT_THROW(train_language_model(run("bad")), IoError);
}

// Tokens from a mapped file and tokens from a text train the same model.
TEST_F(LanguageModelRunTest, ATokenFileIsAsGoodAsItsText) {
  LanguageModelSettings settings = small();
  const auto tokenizer = text::Tokenizer::train_characters(text());
  tokenizer.save(root_ / "tokenizer");
  encode_file(*distributed::single(), root_ / "text.txt", root_ / "text.tokens", tokenizer);
  LanguageModelRun a = run("a", settings), b = run("b", settings);
  a.tokenizer = b.tokenizer = (root_ / "tokenizer").string();
  b.data = (root_ / "text.tokens").string();
  const LanguageModelSummary x = train_language_model(a), y = train_language_model(b);
  EXPECT_EQ(x.progress.tokens, y.progress.tokens);
  EXPECT_LT(y.progress.last_loss, y.progress.first_loss);
  // One character more or less at the cut, where a text is split by bytes and a file by tokens.
  EXPECT_NEAR(static_cast<double>(x.validation->tokens), static_cast<double>(y.validation->tokens), 1);
  b.tokenizer.clear();
  b.folder += "2";
  EXPECT_THAT([&] { train_language_model(b); }, ThrowsMessage<ValueError>(HasSubstr("--tokenizer-file")));
}

TEST_F(LanguageModelRunTest, SpecialTokensThatAreReadAsCharactersAreSaid) {
  LanguageModelSettings settings = small();
  settings.tokenizer = TokenizerChoice::bpe, settings.vocab_size = 300;
  EXPECT_THAT(prepare_language_model_data(text(), "t.txt", settings).warnings, testing::IsEmpty());
  const auto spelled = prepare_language_model_data(text() + "<|endoftext|>" + text(), "t.txt", settings);
  ASSERT_EQ(spelled.warnings.size(), 1u);
  EXPECT_THAT(spelled.warnings[0],
              HasSubstr("read as plain characters: \"<|endoftext|>\"; train conversations as such"));
  EXPECT_EQ(LanguageModelTask(settings, spelled).warnings(), spelled.warnings);
}

TEST_F(LanguageModelRunTest, ValidationCanComeInBlocks) {
  LanguageModelSettings settings = small();
  settings.validation_blocks = 4;
  const LanguageModelData data = prepare_language_model_data(text(), "text", settings);
  const auto whole = data.tokenizer.encode(text());
  EXPECT_EQ(data.training.size() + data.validation.size(), static_cast<int64_t>(whole.size()));
  EXPECT_NEAR(static_cast<double>(data.validation.size()), 0.1 * static_cast<double>(whole.size()), 8);
  const int64_t first_block = static_cast<int64_t>(whole.size()) / 4 * 9 / 10;
  EXPECT_NE(data.training[first_block + 40] == whole[static_cast<size_t>(first_block) + 40] &&
                data.training[first_block + 41] == whole[static_cast<size_t>(first_block) + 41] &&
                data.training[first_block + 42] == whole[static_cast<size_t>(first_block) + 42] &&
                data.training[first_block + 43] == whole[static_cast<size_t>(first_block) + 43],
            true);
}

class LoopTest : public LanguageModelRunTest {
 protected:
  struct Parts {
    LanguageModelSettings settings;
    LanguageModelData data;
    LanguageModelTask task;
    std::vector<nn::NamedTensor> parameters;
    std::unique_ptr<optim::Optimizer> optimizer;

    explicit Parts(const LanguageModelSettings& s)
        : settings(s),
          data(prepare_language_model_data(text(), "text", s)),
          task(s, data),
          parameters(nn::named_parameters(task.model())),
          optimizer(make_optimizer(s, parameters)) {}
    TrainLoop loop(const std::string& folder, std::vector<Observer*> observers = {}) {
      make_folder(folder);
      return TrainLoop(task, *optimizer,
                       {.folder = folder,
                        .steps = settings.steps,
                        .accumulate = settings.accumulate,
                        .schedule = schedule_of(settings),
                        .log_every = 1,
                        .eval_every = 0},
                       std::move(observers));
    }
  };
};

std::vector<std::vector<float>> values(const std::vector<nn::NamedTensor>& parameters) {
  std::vector<std::vector<float>> all;
  for (const auto& [name, tensor] : parameters) all.push_back(tensor.to_vector<float>());
  return all;
}

TEST_F(LoopTest, NanInAWeightStopsWithItsNameBeforeAnythingMoves) {
  Parts p(small());
  struct Poison : Observer {
    const Tensor* target = nullptr;
    void on_step(const StepReport& report) override {
      if (report.step == 3) target->data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
    }
  } poison;
  for (const auto& [name, tensor] : p.parameters) {
    if (name == "layers.1.linear1.bias") poison.target = &tensor;
  }
  ASSERT_NE(poison.target, nullptr);
  TrainLoop loop = p.loop((root_ / "nan").string(), {&poison});
  EXPECT_THAT([&] { loop.run(); }, ThrowsMessage<NumericError>(testing::AllOf(
                                       HasSubstr("step 3"), HasSubstr("layers.1.linear1.bias"))));
  EXPECT_EQ(p.optimizer->steps(), 3);
}

TEST_F(LoopTest, ALossThatExplodesLeavesFiniteWeights) {
  LanguageModelSettings s = small();
  s.optimizer = OptimizerChoice::sgd, s.clip = 0, s.lr = 1e30, s.schedule = optim::ScheduleKind::constant;
  s.warmup_steps = 0;
  Parts p(s);
  make_folder((root_ / "x").string());
  TrainLoop loop(p.task, *p.optimizer,
                 {.folder = (root_ / "x").string(), .steps = 50, .clip = 0, .schedule = schedule_of(s)});
  EXPECT_THAT([&] { loop.run(); }, ThrowsMessage<NumericError>(HasSubstr("step ")));
}

TEST_F(LoopTest, AStepAsksTheSystemForNothingAfterTheFirst) {
  LanguageModelSettings s = small();
  s.steps = 9;
  Parts p(s);
  struct Count : Observer {
    std::vector<int64_t> allocations;
    void on_step(const StepReport&) override { allocations.push_back(memory_stats().system_allocations); }
  } count;
  p.loop((root_ / "allocations").string(), {&count}).run();
  ASSERT_EQ(count.allocations.size(), 9u);
  EXPECT_EQ(count.allocations.back(), count.allocations.front());
}

TEST_F(LoopTest, AccumulationIsOneLargeBatch) {
  LanguageModelSettings one = small(), many = small();
  one.model.dropout_p = one.model.attention_dropout_p = 0;
  many.model.dropout_p = many.model.attention_dropout_p = 0;
  one.batch = 6, one.accumulate = 1;
  many.batch = 3, many.accumulate = 2;
  one.steps = many.steps = 4;
  Parts a(one), b(many);
  a.loop((root_ / "one").string()).run();
  b.loop((root_ / "many").string()).run();
  const auto x = values(a.parameters), y = values(b.parameters);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x[i].size(); ++j) {
      ASSERT_NEAR(x[i][j], y[i][j], 2e-4) << a.parameters[i].name;
    }
  }
}

TEST_F(LoopTest, RefusesBadOptions) {
  Parts p(small());
  auto refused = [&](LoopOptions options) {
    EXPECT_THROW(TrainLoop(p.task, *p.optimizer, std::move(options)), ValueError);
  };
  refused({.folder = ""});
  refused({.folder = "x", .steps = 0});
  refused({.folder = "x", .accumulate = 0});
  refused({.folder = "x", .clip = std::nan("")});
  refused({.folder = "x", .log_every = 0});
  refused({.folder = "x", .keep = 0});
  refused({.folder = "x", .schedule = {.lr = std::nan("")}});
}

}  // namespace
}  // namespace multihead::train
