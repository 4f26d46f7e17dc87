// One step over micro-batches, shards and ranks is one step over a batch that holds them all.
#include <gtest/gtest.h>

#include "multihead/distributed/local_group.h"
#include "multihead/io/safetensors.h"
#include "multihead/testing/encoder_run.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/masked_lm_run.h"
#include "multihead/train/tasks/seq2seq_run.h"

namespace multihead::train {
namespace {

// How the micro-batches of a step are divided: parts · accumulate · shards = 4.
struct Division {
  int64_t parts, accumulate, shards;
  int ranks;
};
constexpr Division kDivisions[] = {{1, 4, 1, 1}, {2, 2, 1, 1}, {1, 1, 4, 1}, {1, 2, 2, 1},
                                   {1, 2, 2, 2}, {1, 1, 4, 3}, {2, 1, 2, 2}};

struct Losses : Observer {
  std::vector<double> steps;
  void on_step(const StepReport& report) override { steps.push_back(report.loss); }
};

using Weights = std::map<std::string, std::vector<float>>;
struct Result {
  Weights weights;
  double loss = 0;
};

class AccumulationTest : public EncoderRunTest {
 protected:
  // A step of plain gradient descent, so that the weights' change is the gradient.
  template <class Settings>
  static void descend(Settings& s) {
    s.optimizer = OptimizerChoice::sgd, s.schedule = optim::ScheduleKind::constant, s.warmup_steps = 0;
    s.lr = 0.5, s.weight_decay = 0, s.momentum = 0, s.clip = 0, s.steps = 1, s.log_every = 1,
    s.eval_every = 0;
    s.model.dropout_p = s.model.attention_dropout_p = 0;
  }

  template <class Run, class Train>
  Result result_of(Run run, int ranks, Train&& train) const {
    Losses losses;
    run.folder = path("out"), run.overwrite = true;
    distributed::run_local_group(ranks, [&](distributed::Group& group) {
      Run own = run;
      own.group = &group;
      if (group.rank() == 0) own.observers = {&losses};
      train(own);
    });
    Result result = {.weights = {}, .loss = losses.steps.at(0)};
    const bool adapts = run.settings.lora.rank > 0;
    const io::SafetensorsFile file(path(adapts ? "out/adapter_model.safetensors" : "out/model.safetensors"));
    for (const std::string& name : file.names()) result.weights[name] = file.load(name).to_vector<float>();
    return result;
  }

  static void expect_equal(const Result& got, const Result& want, const Division& d) {
    const std::string what =
        concat(d.parts, " x ", d.accumulate, " micro-batches x ", d.shards, " shards, ranks: ", d.ranks);
    EXPECT_NEAR(got.loss, want.loss, 1e-5) << what;
    ASSERT_EQ(got.weights.size(), want.weights.size()) << what;
    double worst = 0;
    for (const auto& [name, values] : want.weights) {
      for (size_t i = 0; i < values.size(); ++i)
        worst = std::max(worst, std::abs(double{got.weights.at(name)[i]} - values[i]));
    }
    EXPECT_LT(worst, 2e-5) << what;
  }

  // `division_of` returns the run of a division.
  template <class Run, class Train>
  void expect_one_batch(const std::function<Run(const Division&)>& division_of, Train&& train) const {
    const Result whole = result_of(division_of({4, 1, 1, 1}), 1, train);
    for (const Division& d : kDivisions) expect_equal(result_of(division_of(d), d.ranks, train), whole, d);
  }
  template <class Run>
  static void divide(Run& run, const Division& d, int64_t micro) {
    descend(run.settings);
    run.settings.batch = micro * d.parts, run.settings.accumulate = d.accumulate;
    run.settings.shards = d.shards;
  }

  ClassifierRun classifier(int64_t lora_rank, const Division& d) const {
    ClassifierRun run;
    run.data = path("labelled.tsv"), run.init = path("bert");
    start_from(run.settings, run.init);
    divide(run, d, 3);
    run.settings.lora.rank = lora_rank;
    return run;
  }
};

TEST_F(AccumulationTest, LanguageModels) {
  std::string text;
  for (uint64_t i = 0; i < 60; ++i) text += sentence(i, i % 3 * 5) + ".\n";
  write("text.txt", text);
  expect_one_batch<LanguageModelRun>(
      [&](const Division& d) {
        LanguageModelRun run;
        run.data = path("text.txt");
        run.settings.model.num_layers = 1, run.settings.model.num_heads = 2,
        run.settings.model.embed_dim = 12;
        run.settings.model.context = 13, run.settings.tokenizer = TokenizerChoice::characters;
        divide(run, d, 2);
        return run;
      },
      train_language_model);
}

TEST_F(AccumulationTest, MaskedLanguageModelsWithWordsOfDifferentLengths) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += i % 3 == 0 ? "incomprehensibilities counterrevolutionaries " : "a b c d e f g h i j k ";
  write("text.txt", text);
  expect_one_batch<MaskedLmRun>(
      [&](const Division& d) {
        MaskedLmRun run;
        run.data = path("text.txt"), run.settings = masked_lm_settings("tiny");
        run.settings.model.num_layers = 1, run.settings.model.num_heads = 2,
        run.settings.model.embed_dim = 16;
        run.settings.vocab_size = 270, run.settings.max_length = 24, run.settings.validation_share = 0;
        divide(run, d, 1);
        return run;
      },
      train_masked_lm);
}

TEST_F(AccumulationTest, SentencePairsOfDifferentLengths) {
  // With buckets of one length and 45 tokens a batch: three long pairs, each alone, and the short ones.
  std::string pairs;
  for (const char* word : {"tree", "hill", "road"}) {
    const std::string text = std::string("the cat sat on the mat and looked at ") + word;
    pairs += text + "\t" + text + "\n";
  }
  for (const char* word : {"a", "b", "c", "d", "e"}) pairs += std::string(word) + "\t" + word + "\n";
  write("pairs.tsv", pairs);
  const auto run_of = [&](const Division& d) {
    Seq2SeqRun run;
    run.data = path("pairs.tsv");
    Seq2SeqSettings& s = run.settings;
    s.model.encoder_layers = s.model.decoder_layers = 1, s.model.num_heads = 2, s.model.embed_dim = 16;
    s.model.max_positions = 64, s.max_tokens = 64, s.tokenizer = TokenizerChoice::characters;
    descend(s);
    s.label_smoothing = 0.1, s.average = 1;
    s.accumulate = d.accumulate, s.shards = d.shards;
    s.bucket = d.parts == 4 ? 1000 : 1, s.batch_tokens = d.parts == 4 ? 10000 : 45;
    return run;
  };
  const Result whole = result_of(run_of({4, 1, 1, 1}), 1, train_seq2seq);
  for (const Division& d : kDivisions) {
    if (d.parts == 1) expect_equal(result_of(run_of(d), d.ranks, train_seq2seq), whole, d);
  }
}

TEST_F(AccumulationTest, ClassifiersAndTheirAdapters) {
  std::string labelled;
  for (uint64_t i = 0; i < 12; ++i)
    labelled += sentence(i, i % 2 * 5) + "\t" + (i % 2 == 0 ? "low" : "high") + "\n";
  write("labelled.tsv", labelled);
  for (const int64_t rank : {0, 2}) {
    expect_one_batch<ClassifierRun>([&](const Division& d) { return classifier(rank, d); }, train_classifier);
  }
  labelled = "";  // of which a micro-batch may have one label alone
  for (uint64_t i = 0; i < 24; ++i)
    labelled += sentence(i, 5) + (i % 6 < 4 ? "\ta\n" : i % 6 == 4 ? "\tb\n" : "\tc\n");
  write("labelled.tsv", labelled);
  const auto balanced = [&](const Division& d) {
    ClassifierRun run = classifier(0, d);
    run.settings.balanced = true;
    return run;
  };
  expect_one_batch<ClassifierRun>(balanced, train_classifier);
}

// The negatives of a query are the documents of its shard, however many micro-batches that is.
TEST_F(AccumulationTest, EmbeddersShareTheirNegatives) {
  std::string pairs;
  for (uint64_t i = 0; i < 12; ++i) pairs += sentence(i, 0) + "\t" + sentence(i, 5) + "\n";
  write("pairs.tsv", pairs);
  const auto run_of = [&](const Division& d) {
    EmbedderRun run;
    run.data = path("pairs.tsv"), run.init = path("bert");
    start_from(run.settings, run.init);
    divide(run, d, 3);
    return run;
  };
  for (const int64_t shards : {1, 2}) {
    const Result whole = result_of(run_of({4 / shards, 1, shards, 1}), 1, train_embedder);
    for (const Division& d :
         {Division{1, 4 / shards, shards, 1}, Division{1, 4 / shards, shards, int(shards)}})
      expect_equal(result_of(run_of(d), d.ranks, train_embedder), whole, d);
  }
}

}  // namespace
}  // namespace multihead::train
