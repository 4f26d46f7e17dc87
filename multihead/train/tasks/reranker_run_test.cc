#include "multihead/train/tasks/reranker_run.h"

#include <gmock/gmock.h>

#include <cmath>

#include "multihead/embed/text_classifier.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/encoder_run.h"

namespace multihead::train {
namespace {

using ::testing::ElementsAre;

class RerankerRunTest : public EncoderRunTest {
 protected:
  // A document answers a query of the same word.
  RerankerRunTest() { write("train.tsv", pairs(0)), write("valid.tsv", pairs(50)); }

  static std::string pairs(uint64_t seed) {
    std::string all;
    for (uint64_t i = seed; i < seed + 45; ++i) {
      const std::string own = kWords[i % 15], other = kWords[(i + 1 + i % 13) % 15];
      all += "the " + own + " " + std::to_string(i) + "\ta " + own + "\ta " + other + "\n";
    }
    return all;
  }

  RerankerRun run(const std::string& name) const {
    RerankerRun run;
    run.data = path("train.tsv"), run.valid = path("valid.tsv"), run.init = path("bert");
    run.folder = path(name);
    start_from(run.settings, run.init);
    RerankerSettings& s = run.settings;
    s.batch = 8, s.steps = 12, s.lr = 1e-2, s.warmup_steps = 3, s.eval_every = 5, s.log_every = 1;
    return run;
  }
};

TEST_F(RerankerRunTest, LeavesARerankerThatSaysWhatWasMeasured) {
  const RerankerSummary summary = train_reranker(run("a"));
  ASSERT_TRUE(summary.validation && !std::isnan(summary.validation->mrr));
  EXPECT_EQ(summary.queries, 45);
  EXPECT_EQ(summary.pairs, 90);
  EXPECT_LT(summary.kept_loss, summary.progress.first_loss);
  const auto reranker = embed::TextClassifier::load(path("a"));
  EXPECT_EQ(reranker.num_labels(), 1);
  const text::JudgedPairs valid = text::read_judged(path("valid.tsv"));
  double sum = 0;
  for (size_t i = 0; i < valid.queries.size(); ++i) {
    const std::vector<embed::TextPair> two = {{valid.queries[i], valid.documents[i]},
                                              {valid.queries[i], valid.negatives[i]}};
    const Tensor logits = reranker.logits(two);
    sum += logits.data<float>()[0] >= logits.data<float>()[1] ? 1 : 0.5;
  }
  EXPECT_NEAR(summary.validation->mrr, sum / 45, 1e-6);
  EXPECT_EQ(io::load_json(path("a/config.json")).at("architectures").at(0).as_string(),
            "BertForSequenceClassification");
}

// The first query has one document, so that it has no ranking.
TEST_F(RerankerRunTest, TheBestMayBeThatOfTheBestRanking) {
  write("valid.tsv", "sea\tred\t0\nsun\tsun\t1\nsun\tcat\t0\n");
  RerankerRun r = run("a");
  r.settings.best = "mrr";
  const RerankerSummary summary = train_reranker(r);
  EXPECT_GE(merit("mrr", 0, summary.progress.best_figures), 0.5);
}

TEST_F(RerankerRunTest, EveryLossLearnsInBf16) {
  for (const RankingLoss loss : {RankingLoss::pairs, RankingLoss::lists}) {
    RerankerRun r = run("a");
    r.overwrite = true;
    r.settings.ranking = loss, r.settings.precision = Precision::bf16;
    const RerankerSummary summary = train_reranker(r);
    EXPECT_LT(summary.kept_loss, summary.progress.first_loss);
  }
}

TEST_F(RerankerRunTest, AnInterruptedRunGoesOnBitForBit) {
  for (const RankingLoss loss : {RankingLoss::pairs, RankingLoss::lists}) {
    RerankerRun r = run("");
    r.overwrite = true;
    r.settings.ranking = loss, r.settings.model.dropout_p = 0.1, r.settings.accumulate = 2;
    expect_resumes(r, train_reranker);
    for (const char* name : {"whole", "half", "other"}) std::filesystem::remove_all(root_ / name);
  }
}

TEST_F(RerankerRunTest, LossesAreThoseOfTheirFormulas) {
  text::JudgedPairs pairs = {{"a", "a", "b"}, {"cat", "dog", "sun"}, {}, {1, 0.5, 0}, {1, 2, 3}};
  RerankerSettings s = run("").settings;
  s.model.dropout_p = s.model.attention_dropout_p = 0;
  RerankerData data = {.tokenizer = text::Tokenizer::load(path("bert")),
                       .training = ranked_pairs(pairs, s, "training"),
                       .validation = {}};
  EXPECT_THAT(data.training.begins, ElementsAre(0, 2, 3));
  data.texts = encode_pair_texts(data.tokenizer, data.training.queries, data.training.documents, 19, true);
  const auto losses = [&](RankingLoss loss, int64_t batch) {
    s.ranking = loss, s.batch = batch;
    RerankerTask task(s, data, path("bert"));
    const std::vector<double> x = task.model().logits(token_rows(data.texts, {0, 1, 2})).to_vector<double>();
    return std::pair(task.loss(0).value.item(), x);
  };
  const auto [mean, x] = losses(RankingLoss::pairs, 3);
  double expected = 0;
  for (size_t i = 0; i < 3; ++i) expected += std::log1p(std::exp(x[i])) - x[i] * (1 - 0.5 * double(i));
  EXPECT_NEAR(mean, expected / 3, 1e-6);
  // One document of b: nothing to choose.
  const auto list = losses(RankingLoss::lists, 2).first;
  const double p = 1 / (1 + std::exp(-0.5)), log_sum = std::log(std::exp(x[0]) + std::exp(x[1]));
  EXPECT_NEAR(list, (p * (log_sum - x[0]) + (1 - p) * (log_sum - x[1])) / 2, 1e-6);
}

TEST_F(RerankerRunTest, NegativesAreDocumentsOfOtherQueries) {
  text::JudgedPairs pairs = {{"q", "r", "q"}, {"cat", "dog", "sun"}, {}, {}, {1, 2, 3}};
  RerankerSettings s = run("").settings;
  expect_error<FormatError>([&] { ranked_pairs(pairs, s, "training"); },
                            "have the score 1, so that there is nothing");
  s.negatives = 2;
  for (const char* miner : {"", "bert"}) {
    s.miner = *miner == 0 ? "" : path(miner);
    const RankedPairs ranked = ranked_pairs(pairs, s, "training");
    EXPECT_THAT(ranked.begins, ElementsAre(0, 3, 6));
    EXPECT_THAT(ranked.scores, ElementsAre(1, 1, 0, 1, 0, 0));
    EXPECT_EQ(ranked.documents[2], "dog");
  }
}

TEST_F(RerankerRunTest, APairCountsOnceWithItsLargestScore) {
  const text::JudgedPairs pairs = {
      {"q", "q", "r", "q"}, {"cat", "cat", "cat", "dog"}, {}, {0, 1, 0, 0}, {1, 2, 3, 4}};
  const RankedPairs ranked = ranked_pairs(pairs, run("").settings, "training");
  EXPECT_THAT(ranked.scores, ElementsAre(1, 0, 0));
  EXPECT_EQ(ranked.repeated, 1);
}

TEST_F(RerankerRunTest, AHeadOfOneLabelIsKeptWhateverItIsCalled) {
  train_reranker(run("a"));
  Json config = io::load_json(path("a/config.json"));
  config["id2label"] = Json::object({{"0", "relevant"}}),
  config["label2id"] = Json::object({{"relevant", 0}});
  write("a/config.json", config.dump());
  RerankerRun r = run("b");
  r.init = path("a");
  start_from(r.settings, r.init);
  r.settings.steps = 1, r.settings.lr = 1e-12, r.settings.weight_decay = 0;
  train_reranker(r);
  const std::vector<std::vector<embed::TextPair>> pair = {{{"the cat", "a dog"}}};
  const auto logit = [&](const char* name) {
    return embed::TextClassifier::load(path(name)).logits(pair[0]).item();
  };
  EXPECT_NEAR(logit("a"), logit("b"), 1e-6);
  EXPECT_EQ(io::load_json(path("b/config.json")).at("id2label").at("0").as_string(), "relevant");
}

TEST_F(RerankerRunTest, BadInputIsNamedAndLeavesNothing) {
  struct {
    const char *train, *why;
  } cases[] = {{"q\td\t2\nq\te\t0\n", "line 1 of the training data: a score must be in [0, 1]"},
               {"q\td\t-1\nq\te\t0\n", "a score must be in [0, 1]"},
               {"q\td\t1\nq\te\tno\n", "line 2: the score must be a number"},
               {"q\td\n", "give a column \"score\" or \"negative\", or --negatives 4"},
               {"q\td\t1\tx\n", "line 1 must have two columns"},
               {"q\t\t1\n", "line 1 has an empty column"}};
  for (const auto& c : cases) {
    write("bad.tsv", c.train);
    RerankerRun r = run("bad");
    r.data = path("bad.tsv");
    expect_error<FormatError>([&] { train_reranker(r); }, c.why);
    EXPECT_FALSE(std::filesystem::exists(root_ / "bad")) << c.train;
  }
}

}  // namespace
}  // namespace multihead::train
