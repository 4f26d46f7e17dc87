#include "multihead/train/tasks/embedder_run.h"

#include <gmock/gmock.h>

#include "multihead/autograd/tape.h"
#include "multihead/io/json.h"
#include "multihead/testing/encoder_run.h"

namespace multihead::train {
namespace {

class EmbedderRunTest : public EncoderRunTest {
 protected:
  EmbedderRunTest() {
    std::string train, valid;
    for (uint64_t i = 0; i < 60; ++i) {
      train += sentence(i, 0) + "\t" + sentence(i, 5) + "\n";
      valid += sentence(i + 100, 0) + "\t" + sentence(i + 100, 5) + "\n";
    }
    write("train.tsv", train);
    write("valid.tsv", valid);
  }

  embed::SentenceEncoder without_dropout() const {
    auto encoder = embed::SentenceEncoder::load_to_train(path("bert"));
    models::EncoderConfig config = encoder.encoder().config();
    config.dropout_p = config.attention_dropout_p = 0;
    encoder.encoder() = encoder_from(config, encoder.encoder(), 1);
    return encoder;
  }

  EmbedderRun run(const std::string& name) const {
    EmbedderRun run;
    run.data = path("train.tsv"), run.valid = path("valid.tsv"), run.init = path("bert");
    run.folder = path(name);
    start_from(run.settings, run.init);
    EmbedderSettings& s = run.settings;
    s.batch = 8, s.chunk = 3, s.steps = 30, s.lr = 1e-2, s.warmup_steps = 3, s.eval_every = 5,
    s.log_every = 1;
    return run;
  }
};

// config.json does not say whether there is a pooler.
TEST_F(EmbedderRunTest, OtherRanksHaveTheLeadersLayers) {
  for (const bool pooler : {false, true}) {
    models::EncoderConfig config = models::load_encoder(path("bert")).config();
    config.pooler = pooler;
    models::Encoder encoder = encoder_from(config, models::load_encoder(path("bert")), 1);
    const std::string folder = path(pooler ? "with" : "without");
    models::save_encoder(encoder, folder);
    text::Tokenizer::load(path("bert")).save(folder);
    const std::unique_ptr<AnyRun> leader = EmbedderTask::kind().make(), other = EmbedderTask::kind().make();
    leader->request().init = folder;
    leader->start_from_init();
    other->set_model(leader->model(), "rank 0");
    EXPECT_EQ(other->model(), leader->model());
    EXPECT_EQ(other->model().at("pooler"), Json(pooler));
  }
}

TEST_F(EmbedderRunTest, EqualDocumentsAreOneInRecall) {
  std::string pairs;
  for (uint64_t i = 0; i < 6; ++i) pairs += sentence(i, 0) + "\t" + sentence(1, 5) + "\n";
  write("valid.tsv", pairs);
  EmbedderRun r = run("a");
  r.settings.steps = 1, r.settings.warmup_steps = 0;
  EXPECT_EQ(train_embedder(r).validation->recall_at_1, 1);
}

// As eval counts them: a query with several documents is one, and half of them is half.
TEST_F(EmbedderRunTest, EqualQueriesAreOneInRecall) {
  const std::string query = sentence(0, 0);
  write("valid.tsv", query + "\t" + sentence(1, 5) + "\n" + query + "\t" + sentence(2, 5) + "\n" + query +
                         "\t" + sentence(2, 5) + "\n");
  EmbedderRun r = run("a");
  r.settings.steps = 1, r.settings.warmup_steps = 0;
  const RetrievalScore score = *train_embedder(r).validation;
  EXPECT_EQ(score.recall_at_1, 0.5);
  EXPECT_EQ(score.recall_at_10, 1);
}

TEST_F(EmbedderRunTest, LearnsAndLeavesAFolderOfSentenceTransformers) {
  const EmbedderSummary summary = train_embedder(run("a"));
  ASSERT_TRUE(summary.validation);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss - 0.3);
  EXPECT_GT(summary.validation->recall_at_10, summary.validation->recall_at_1);
  const Figures &before = summary.progress.first_figures, &after = summary.kept_figures;  // of the same pairs
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(after[0], std::make_pair(std::string("recall_at_1"), summary.validation->recall_at_1));
  EXPECT_LT(before[0].second, after[0].second);
  const auto encoder = embed::SentenceEncoder::load(path("a"));
  const text::JudgedPairs valid = text::read_judged(root_ / "valid.tsv");
  const auto found = embed::nearest(encoder.encode(valid.queries, {.normalize = true}),
                                    encoder.encode(valid.documents, {.normalize = true}), 1);
  double hits = 0;
  for (size_t i = 0; i < found.size(); ++i) hits += found[i][0].row == static_cast<int64_t>(i) ? 1 : 0;
  EXPECT_NEAR(hits / 60, summary.validation->recall_at_1, 0.04);
  EXPECT_EQ(io::load_json(path("a/modules.json")).items().size(), 2u);
  EXPECT_TRUE(io::load_json(path("a/1_Pooling/config.json")).at("pooling_mode_mean_tokens").as_bool());
}

TEST_F(EmbedderRunTest, AnInterruptedRunGoesOnBitForBit) {
  EmbedderRun r = run("");
  r.settings.steps = 12, r.settings.model.dropout_p = 0.1, r.settings.symmetric = true;
  expect_resumes(r, train_embedder);
}

// The gradients of a step, by parameter.
std::map<std::string, Tensor> gradients(EmbedderTask& task, int64_t index) {
  Tape tape;
  const Task::Loss loss = task.loss(index);
  tape.backward(loss.value);
  std::map<std::string, Tensor> all;
  for (const auto& p : nn::named_parameters(task.model())) {
    if (p.tensor.grad().defined()) all[p.name] = p.tensor.grad().clone();
    p.tensor.set_grad({});
  }
  all["loss"] = loss.value.detach().clone();
  return all;
}

TEST_F(EmbedderRunTest, GradientCachingChangesNothing) {
  const auto encoder = embed::SentenceEncoder::load_to_train(path("bert"));
  const text::JudgedPairs texts = text::read_judged(root_ / "train.tsv");
  const EmbedderData data = {encode_text_pairs(encoder, texts, 19), {}};
  EmbedderSettings s = run("").settings;
  const auto of = [&](int64_t chunk) {
    s.chunk = chunk;
    EmbedderTask task(s, without_dropout(), data, path("bert"));
    return gradients(task, 2);
  };
  const auto whole = of(0), parts = of(3), again = of(3);
  EXPECT_GT(whole.size(), 20u);
  ASSERT_EQ(parts.size(), whole.size());
  for (const auto& [name, gradient] : whole) {
    const auto a = gradient.to_vector<double>(), b = parts.at(name).to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6 + 1e-5 * std::abs(a[i])) << name;
    EXPECT_EQ(parts.at(name).to_vector<float>(), again.at(name).to_vector<float>()) << name;
  }
  // The vectors do not know of chunks: the loss has the same bits.
  EXPECT_EQ(whole.at("loss").item(), parts.at("loss").item());
}

TEST_F(EmbedderRunTest, TextsHaveThePromptsTheyAreSearchedWith) {
  const embed::SentenceEncoder plain = without_dropout();
  write("bert/config_sentence_transformers.json",
        R"({"prompts": {"query": "the ", "document": "a red "}, "default_prompt_name": "query"})");
  const embed::SentenceEncoder prompted = without_dropout();
  EmbedderSettings s = run("").settings;
  s.batch = 2, s.chunk = 0;
  const auto loss_of = [&](const embed::SentenceEncoder& encoder, const text::JudgedPairs& texts) {
    const EmbedderData data = {encode_text_pairs(encoder, texts, 19), {}};
    return EmbedderTask(s, encoder, data, path("bert")).loss(0).value.item();
  };
  EXPECT_EQ(
      loss_of(prompted, {{"cat", "dog"}, {"mat", "sun"}, {"green", "dog"}}),
      loss_of(plain, {{"the cat", "the dog"}, {"a red mat", "a red sun"}, {"a red green", "a red dog"}}));
  EXPECT_EQ(loss_of(prompted, {{"cat", "dog"}, {"mat", "sun"}, {}, {0.9, 0.1}}),
            loss_of(plain, {{"the cat", "the dog"}, {"the mat", "the sun"}, {}, {0.9, 0.1}}));
}

TEST_F(EmbedderRunTest, EqualTextsAreNoAlternatives) {
  const embed::SentenceEncoder encoder = without_dropout();
  const text::JudgedPairs texts = {{"the cat", "the dog", "the cat"}, {"a mat", "a mat", "red sun"}};
  const EmbedderData data = {encode_text_pairs(encoder, texts, 19), {}};
  EmbedderSettings s = run("").settings;
  s.batch = 3, s.chunk = 2;
  EmbedderTask task(s, encoder, data, path("bert"));
  // Only the dog has a choice: both documents belong to the cat.
  const Tensor x =
      encoder.encode(std::vector<std::string>{"the cat", "the dog", "a mat", "red sun"}, {.normalize = true});
  const auto cosine = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < 20; ++i) sum += double{x.data<float>()[a * 20 + i]} * x.data<float>()[b * 20 + i];
    return sum / s.temperature;
  };
  const double dog = std::log1p(std::exp(cosine(1, 3) - cosine(1, 2)));
  EXPECT_NEAR(task.loss(0).value.item(), dog / 3, 1e-5);
}

TEST_F(EmbedderRunTest, LossesAreThoseOfTheirFormulas) {
  const embed::SentenceEncoder encoder = without_dropout();
  const Tensor q = encoder.encode(std::vector<std::string>{"the cat", "the dog"}),
               d = encoder.encode(std::vector<std::string>{"a mat", "red sun"}),
               n = encoder.encode(std::vector<std::string>{"green", "a mat"});
  EmbedderSettings s = run("").settings;
  s.batch = 2, s.chunk = 0;
  const auto cosine = [&](const Tensor& a, int64_t i, const Tensor& b, int64_t j, int64_t size) {
    double sum = 0, x = 0, y = 0;
    for (int64_t k = 0; k < size; ++k) {
      const double u = a.data<float>()[i * 20 + k], v = b.data<float>()[j * 20 + k];
      sum += u * v, x += u * u, y += v * v;
    }
    return std::exp(sum / std::sqrt(x * y) / s.temperature);
  };
  const auto loss_of = [&](const text::JudgedPairs& texts) {
    const EmbedderData data = {encode_text_pairs(encoder, texts, 19), {}};
    EmbedderTask task(s, encoder, data, path("bert"));
    return task.loss(0).value.item();
  };
  // "a mat" is the first query's answer, so that it is no negative of its own; of the dog it is one, once as a
  // document and once as a negative.
  const auto choice = [&](int64_t size) {
    const auto at = [&](int64_t i, const Tensor& b, int64_t j) { return cosine(q, i, b, j, size); };
    const double cat = at(0, d, 0), dog = at(1, d, 1);
    return (std::log((cat + at(0, d, 1) + at(0, n, 0)) / cat) +
            std::log((dog + at(1, d, 0) + at(1, n, 0) + at(1, n, 1)) / dog)) /
           2;
  };
  const text::JudgedPairs triplets = {{"the cat", "the dog"}, {"a mat", "red sun"}, {"green", "a mat"}};
  EXPECT_NEAR(loss_of(triplets), choice(20), 1e-5);
  s.matryoshka = "8,3";
  EXPECT_NEAR(loss_of(triplets), choice(20) + choice(8) + choice(3), 2e-5);
  s.matryoshka = "";
  const text::JudgedPairs scored = {{"the cat", "the dog"}, {"a mat", "red sun"}, {}, {0.9, 0.1}};
  EXPECT_NEAR(loss_of(scored), std::log1p(cosine(q, 1, d, 1, 20) / cosine(q, 0, d, 0, 20)), 1e-5);
}

TEST_F(EmbedderRunTest, ScoresOfPairsAreLearned) {
  std::string train;
  for (uint64_t i = 0; i < 40; ++i)
    train += sentence(i, i % 2 * 5) + "\t" + sentence(i + 50, i % 3 * 5) + "\t" +
             (i % 2 * 5 == i % 3 * 5 ? "1" : "0.25") + "\n";
  write("train.tsv", train), write("valid.tsv", train);
  EmbedderRun r = run("a");
  r.settings.best = "spearman";
  const EmbedderSummary summary = train_embedder(r);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
  EXPECT_GT(summary.validation->spearman, 0.3);
  EXPECT_NE(bytes("a/metrics.jsonl").find("\"eval/spearman\":"), std::string::npos);
  r.settings.matryoshka = "20", r.overwrite = true;
  expect_error<ValueError>([&] { train_embedder(r); },
                           "must be less than the 20 columns of a vector, got 20");
  r.settings.matryoshka = "", r.settings.symmetric = true;
  expect_error<ValueError>([&] { train_embedder(r); }, "--symmetric has no effect on pairs with scores");
}

TEST_F(EmbedderRunTest, AnotherRunTakesThePlaceOfItsOwnFilesOnly) {
  EmbedderRun r = run("a");
  r.settings.steps = 1;
  train_embedder(r);
  r.overwrite = true;
  EXPECT_NO_THROW(train_embedder(r));
  r.folder = path("b");
  std::filesystem::create_directories(root_ / "b/1_Pooling");
  write("b/1_Pooling/notes.txt", "mine");
  expect_error<ValueError>([&] { train_embedder(r); }, "\"1_Pooling\"");
  EXPECT_FALSE(std::filesystem::exists(root_ / "b/train_config.json"));
}

TEST_F(EmbedderRunTest, BadInputIsNamedAndLeavesNothing) {
  EmbedderRun r = run("bad");
  r.settings.batch = 61;
  expect_error<ValueError>([&] { train_embedder(r); }, "there are 60 pairs, fewer than the 61 of a batch");
  r = run("bad"), r.settings.batch = 1;
  expect_error<ValueError>([&] { train_embedder(r); }, "--batch must be at least 2");
  r = run("bad"), r.settings.temperature = 0;
  expect_error<ValueError>([&] { train_embedder(r); }, "--temperature must be positive");
  r = run("bad"), r.init = path("nothing");
  expect_error<IoError>([&] { train_embedder(r); }, "nothing");
  EXPECT_FALSE(std::filesystem::exists(root_ / "bad"));
}

}  // namespace
}  // namespace multihead::train
