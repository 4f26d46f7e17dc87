#include "multihead/train/tasks/seq2seq_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::train {
namespace {

namespace fs = std::filesystem;

struct Recorder : Observer {
  std::vector<double> losses;
  std::vector<std::string> warnings;
  void on_step(const StepReport& report) override { losses.push_back(report.loss); }
  void on_warning(const std::string& message) override { warnings.push_back(message); }
};

class Seq2SeqRunTest : public ::testing::Test {
 protected:
  Seq2SeqRunTest() : root_(fs::temp_directory_path() / concat("multihead_seq2seq_", getpid())) {
    fs::create_directories(root_);
    write("train.tsv", 0, 150);
    write("valid.tsv", 150, 170);
  }
  ~Seq2SeqRunTest() override { fs::remove_all(root_); }

  // "ab c" -> "AB C": letters of random words, in capitals.
  void write(const std::string& name, uint64_t begin, uint64_t end) const {
    std::ofstream out(root_ / name);
    for (uint64_t i = begin; i < end; ++i) {
      const RandomStream stream{7, i};
      std::string source, target;
      const uint64_t length = 1 + stream.bits(0) % 9;
      for (uint64_t k = 1; k <= length; ++k) {
        const auto letter = static_cast<char>(stream.bits(k) % 7);
        source += letter == 6 && k > 1 && k < length ? ' ' : static_cast<char>('a' + letter);
        target += source.back() == ' ' ? ' ' : static_cast<char>(source.back() - 'a' + 'A');
      }
      out << source << '\t' << target << '\n';
    }
  }

  static Seq2SeqSettings small() {
    Seq2SeqSettings s;
    s.model.encoder_layers = s.model.decoder_layers = 1;
    s.model.num_heads = 2, s.model.embed_dim = 16, s.model.max_positions = 32;
    s.tokenizer = TokenizerChoice::characters;
    s.max_tokens = 20, s.batch_tokens = 64, s.steps = 12, s.log_every = 1, s.eval_every = 4,
    s.warmup_steps = 3;
    s.label_smoothing = 0.1, s.keep = 3;
    return s;
  }

  Seq2SeqRun run(const std::string& name, const Seq2SeqSettings& settings = small()) const {
    return {{.data = (root_ / "train.tsv").string(),
             .tokenizer = {},
             .valid = (root_ / "valid.tsv").string(),
             .folder = (root_ / name).string()},
            settings};
  }

  std::string bytes(const std::string& path) const {
    std::ifstream in(root_ / path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  template <class Error>
  static void expect_error(const Seq2SeqRun& run, const char* text) {
    try {
      train_seq2seq(run);
      ADD_FAILURE() << "no error that says " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }

  fs::path root_;
};

TEST_F(Seq2SeqRunTest, ARunLeavesAModelThatLoadsAndIsWhatItMeasured) {
  const Seq2SeqSummary summary = train_seq2seq(run("a"));
  EXPECT_EQ(summary.ending, Ending::finished);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
  const std::string folder = (root_ / "a").string();
  const models::Seq2Seq model = models::load_seq2seq(folder);
  EXPECT_EQ(models::family_of(model.config()), "marian");
  const PairTokenizers tokenizers = load_pair_tokenizers(folder);
  EXPECT_TRUE(tokenizers.shared);
  const auto pairs = encode_pairs(text::read_pairs(root_ / "valid.tsv"), tokenizers.source, tokenizers.target,
                                  {.pad = static_cast<int32_t>(model.config().pad_id),
                                   .eos = static_cast<int32_t>(model.config().eos_id)});
  EXPECT_EQ(evaluate(model, pairs).loss(), summary.validation->loss());
  EXPECT_NEAR(evaluate(model, pairs, 7).loss(), summary.validation->loss(), 1e-6);
  for (const char* file : {"metrics.jsonl", "summary.json", "train_config.json", "tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(root_ / "a" / file)) << file;
  }
}

// As BART's, whose decoder starts with another token than padding, with more rows than its tokenizer has tokens.
TEST_F(Seq2SeqRunTest, FineTuningKeepsTheModelsSpecialTokens) {
  train_seq2seq(run("a"));
  const std::string from = (root_ / "from").string();
  models::Seq2SeqConfig config = models::load_seq2seq((root_ / "a").string()).config();
  config.source_vocab_size = config.target_vocab_size = config.source_vocab_size + 3;
  config.decoder_start_id = config.source_vocab_size - 1;
  Rng rng(3);
  models::Seq2Seq model(config, rng);
  models::save_seq2seq(model, from);
  for (const auto& [file, text] : pair_tokenizer_files(load_pair_tokenizers((root_ / "a").string())))
    write_file_atomically(fs::path(from) / file, text);

  Seq2SeqRun tuned = run("tuned", {});
  tuned.init = from;
  start_from(tuned.settings, from);
  EXPECT_EQ(tuned.settings.max_tokens, 32);
  EXPECT_EQ(tuned.settings.label_smoothing, 0);
  tuned.settings.steps = 2;
  const Seq2SeqSummary summary = train_seq2seq(tuned);
  const LoadedTranslator before = load_translator(from);
  const auto pairs =
      encode_pairs(text::read_pairs(root_ / "valid.tsv"), before.tokenizers.source, before.tokenizers.target,
                   {.pad = static_cast<int32_t>(config.pad_id), .eos = static_cast<int32_t>(config.eos_id)});
  EXPECT_NEAR(summary.progress.first_loss, evaluate(before.model, pairs).loss(), 1e-6);
  const models::Seq2SeqConfig after = load_translator((root_ / "tuned").string()).model.config();
  EXPECT_EQ(after.decoder_start_id, config.decoder_start_id);
  EXPECT_EQ(after.target_vocab_size, config.target_vocab_size);
}

TEST_F(Seq2SeqRunTest, AnInterruptedRunGoesOnBitForBit) {
  for (const bool shared : {true, false}) {
    Seq2SeqSettings settings = small();
    settings.shared_vocabulary = shared;
    settings.average = 2;
    train_seq2seq(run("whole", settings));
    Seq2SeqRun half = run("half", settings);
    int64_t asked = 0;
    half.should_stop = [&] { return ++asked > 7; };
    EXPECT_EQ(train_seq2seq(half).ending, Ending::interrupted);
    EXPECT_FALSE(fs::exists(root_ / "half" / "model.safetensors"));
    half.should_stop = {};
    half.resume = true;
    EXPECT_EQ(train_seq2seq(half).ending, Ending::finished);
    EXPECT_EQ(bytes("half/model.safetensors"), bytes("whole/model.safetensors"));
    EXPECT_EQ(fs::exists(root_ / "half" / kSourceTokenizerFile), !shared);
    fs::remove_all(root_ / "half");
    fs::remove_all(root_ / "whole");
  }
}

// The checkpoint that a stop leaves is none of those whose mean the model is.
TEST_F(Seq2SeqRunTest, AnInterruptedRunHasTheMeanOfTheWhole) {
  Seq2SeqSettings settings = small();
  settings.average = 3;
  Seq2SeqRun whole = run("whole", settings), half = run("half", settings);
  whole.valid.clear(), half.valid.clear();
  train_seq2seq(whole);
  for (const int64_t stop : {6, 3}) {  // behind the first planned checkpoint and the second
    int64_t asked = 0;
    half.should_stop = [&] { return ++asked > stop; };
    EXPECT_EQ(train_seq2seq(half).ending, Ending::interrupted);
    half.resume = true;
  }
  half.should_stop = {};
  EXPECT_EQ(train_seq2seq(half).ending, Ending::finished);
  EXPECT_EQ(bytes("half/model.safetensors"), bytes("whole/model.safetensors"));
  const auto steps = [&](const char* name) {
    std::vector<int64_t> list;
    for (const io::CheckpointInfo& info : io::list_checkpoints((root_ / name).string()))
      list.push_back(info.step);
    return list;
  };
  EXPECT_EQ(steps("half"), steps("whole"));
}

TEST_F(Seq2SeqRunTest, TheMeanOfTheLastCheckpointsIsKeptWhereItIsBetterThanTheBest) {
  Seq2SeqSettings settings = small();
  settings.average = 2, settings.steps = 60, settings.eval_every = 20, settings.warmup_steps = 20;
  settings.lr = 0.4, settings.schedule = optim::ScheduleKind::constant;  // around a minimum
  const Seq2SeqSummary summary = train_seq2seq(run("a", settings));
  EXPECT_LT(summary.kept_loss, summary.progress.best_loss);
  models::Seq2Seq mean = models::load_seq2seq((root_ / "a").string());
  models::Seq2Seq before = nn::clone(mean), last = nn::clone(mean);
  models::load_weights(before, (root_ / "a" / "checkpoint-40" / "model.safetensors").string());
  models::load_weights(last, (root_ / "a" / "checkpoint-60" / "model.safetensors").string());
  const auto of = [](models::Seq2Seq& model) { return nn::parameters(model)[0].to_vector<double>(); };
  const auto got = of(mean), x = of(before), y = of(last);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], (x[i] + y[i]) / 2, 1e-7);

  settings = small();  // whose loss still falls, so that the last weights are the best
  settings.average = 2;
  const Seq2SeqSummary falling = train_seq2seq(run("b", settings));
  EXPECT_EQ(falling.kept_loss, falling.progress.best_loss);
  EXPECT_EQ(bytes("b/model.safetensors"), bytes("b/checkpoint-12/model.safetensors"));
  settings.average = 4;
  EXPECT_THROW(train_seq2seq(run("c", settings)), ValueError);  // keep = 3
}

// It lies between those of --save-every, whose mean it is no part of.
TEST_F(Seq2SeqRunTest, TheBestCheckpointIsKeptWhereItIsBetterThanTheMean) {
  Seq2SeqSettings settings = small();
  settings.average = 3, settings.eval_every = 1, settings.save_every = 4;
  settings.lr = 1, settings.warmup_steps = 12,
  settings.schedule = optim::ScheduleKind::constant;  // leads away
  const Seq2SeqRun r = run("a", settings);
  const Seq2SeqSummary summary = train_seq2seq(r);
  const int64_t best = summary.progress.best_step;
  EXPECT_TRUE(best > 4 && best % 4 != 0) << best;
  EXPECT_EQ(summary.kept_loss, summary.progress.best_loss);
  const auto path = [&](int64_t step) { return io::checkpoint_path(r.folder, step); };
  EXPECT_TRUE(bytes("a/model.safetensors") == read_file(path(best) + "/model.safetensors"));

  const PairTokenizers tokenizers = load_pair_tokenizers(r.folder);
  const Seq2SeqData data =
      prepare_seq2seq_data(text::read_pairs(r.data), text::read_pairs(r.valid), settings, &tokenizers);
  Seq2SeqTask task = Seq2SeqTask::make(r, data);
  ASSERT_TRUE(task.finish(r));
  models::Seq2Seq mean = nn::clone(task.model());
  average_checkpoints(mean, {path(4), path(8), path(12)});
  EXPECT_EQ(nn::parameters(task.model())[0].to_vector<float>(), nn::parameters(mean)[0].to_vector<float>());
}

TEST_F(Seq2SeqRunTest, LongPairsAreLeftOutAndSaidSo) {
  Seq2SeqSettings settings = small();
  settings.max_tokens = 6, settings.steps = 1;
  Recorder recorder;
  Seq2SeqRun short_run = run("a", settings);
  short_run.observers = {&recorder};
  const Seq2SeqSummary summary = train_seq2seq(short_run);
  EXPECT_GT(summary.left_out, 20);
  EXPECT_EQ(summary.pairs + summary.left_out, 150);
  ASSERT_EQ(recorder.warnings.size(), 2u);
  EXPECT_NE(recorder.warnings[0].find("of 150 pairs are longer than 6 tokens"), std::string::npos);
  EXPECT_NE(recorder.warnings[1].find("of 20 validation pairs are longer than 6 tokens"), std::string::npos);
  settings.max_tokens = 2;
  std::ofstream(root_ / "long.tsv") << "abc\tABC\n";
  Seq2SeqRun empty = run("b", settings);
  empty.data = (root_ / "long.tsv").string();
  expect_error<ValueError>(empty, "longer than --max-tokens 2");
  settings.max_tokens = 10;
  std::ofstream(root_ / "long.tsv") << "abcabcabcabc\tABC\n";
  Seq2SeqRun unmeasured = run("c", settings);
  unmeasured.valid = (root_ / "long.tsv").string();
  expect_error<ValueError>(unmeasured, "all 1 validation pairs are longer than --max-tokens 10");
}

TEST_F(Seq2SeqRunTest, BadInputIsNamedAndLeavesNothing) {
  const auto with = [&](const std::string& content) {
    std::ofstream(root_ / "bad.tsv") << content;
    Seq2SeqRun bad = run("bad");
    bad.data = (root_ / "bad.tsv").string();
    return bad;
  };
  expect_error<FormatError>(with("a\tb\nc\n"), "line 2");
  expect_error<FormatError>(with("a\tb\nc\td\te\n"), "line 2");
  expect_error<FormatError>(with("a\tb\n\nc\n"), "line 3");
  expect_error<FormatError>(with("a\t\n"), "line 1");
  expect_error<FormatError>(with(""), "bad.tsv");
  expect_error<FormatError>(with("a\t\xFF\n"), "bad.tsv");
  Seq2SeqRun missing = run("bad");
  missing.data = (root_ / "nowhere.tsv").string();
  expect_error<IoError>(missing, "nowhere.tsv");
  EXPECT_FALSE(fs::exists(root_ / "bad"));
  Seq2SeqSettings settings = small();
  settings.max_tokens = 33;
  expect_error<ValueError>(run("bad", settings), "--max-tokens");
  settings = small();
  settings.model.num_heads = 3;
  expect_error<ValueError>(run("bad", settings), "num_heads");
  train_seq2seq(run("c"));
  expect_error<ValueError>(run("c"), "resume it");
  Seq2SeqRun other = run("c");
  other.resume = true;
  other.settings.lr = 0.5;
  expect_error<ValueError>(other, "lr was");
  Seq2SeqRun renamed = run("c");
  renamed.resume = true, renamed.given = {"tokenizer-file"};
  renamed.tokenizer = (root_ / "c").string();
  train_seq2seq(renamed);
  write_file_atomically(root_ / "long.tsv", "zebra\tquagga\n");
  Seq2SeqRun longer = run("d");
  longer.data = (root_ / "long.tsv").string();
  train_seq2seq(longer);
  renamed.tokenizer = (root_ / "d").string();
  expect_error<ValueError>(renamed, "is not the tokenizer that the run began with");
}

}  // namespace
}  // namespace multihead::train
