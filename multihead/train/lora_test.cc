#include "multihead/train/lora.h"

#include <gmock/gmock.h>

#include "multihead/embed/text_classifier.h"
#include "multihead/io/json.h"
#include "multihead/testing/encoder_run.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/language_model_run.h"

namespace multihead::train {
namespace {

class LoraTest : public EncoderRunTest {
 protected:
  LoraTest() {
    std::string labelled, pairs;
    for (uint64_t i = 0; i < 60; ++i) {
      labelled += sentence(i, i % 2 * 5) + "\t" + (i % 2 == 0 ? "low" : "high") + "\n";
      pairs += sentence(i, 0) + "\t" + sentence(i, 5) + "\n";
    }
    write("labelled.tsv", labelled);
    write("pairs.tsv", pairs);
  }

  template <class Run>
  Run run(const std::string& data, const std::string& name) const {
    Run run;
    run.data = run.valid = path(data), run.init = path("bert"), run.folder = path(name);
    start_from(run.settings, run.init);
    run.settings.batch = 8, run.settings.steps = 40, run.settings.lr = 2e-2, run.settings.warmup_steps = 4;
    run.settings.eval_every = 5, run.settings.log_every = 1, run.settings.lora = {.rank = 3};
    return run;
  }
};

TEST_F(LoraTest, AClassifierIsItsAdapterBesideItsModel) {
  const auto r = run<ClassifierRun>("labelled.tsv", "tuned");
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_GT(summary.validation->accuracy, 0.9);
  // Two layers, queries and values of 20, rank 3; and the head.
  EXPECT_EQ(summary.parameters, 2 * 2 * 2 * 3 * 20 + 2 * 20 + 2);
  EXPECT_FALSE(std::filesystem::exists(root_ / "tuned/model.safetensors"));
  const auto classifier = embed::TextClassifier::load(path("tuned"));
  const text::LabelledTexts texts = text::read_labelled(path("labelled.tsv"));
  const Tensor logits = classifier.logits(texts.texts);
  int64_t right = 0;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const float* row = logits.data<float>() + 2 * i;
    right += classifier.label(row[1] > row[0] ? 1 : 0) == texts.labels[static_cast<size_t>(i)];
  }
  EXPECT_EQ(static_cast<double>(right) / 60, summary.validation->accuracy);
  const Json config = io::load_json(path("tuned/adapter_config.json"));
  EXPECT_EQ(config.at("task_type").as_string(), "SEQ_CLS");
  EXPECT_EQ(config.at("target_modules").dump(), R"(["query","value"])");
  EXPECT_EQ(config.at("modules_to_save").dump(), R"(["classifier"])");
}

// PEFT looks for the head of a classifier in the adapter, whether it was trained or not.
TEST_F(LoraTest, AHeadThatIsThereIsStoredAsItIs) {
  auto base = run<ClassifierRun>("labelled.tsv", "base");
  base.settings.steps = 2, base.settings.lora = {};
  train_classifier(base);
  auto r = run<ClassifierRun>("labelled.tsv", "tuned");
  r.init = path("base"), r.settings.steps = 2;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_EQ(summary.parameters, 2 * 2 * 2 * 3 * 20);
  const io::TensorMap before = io::load_safetensors(path("base/model.safetensors")),
                      after = io::load_safetensors(path("tuned/adapter_model.safetensors"));
  for (const std::string name : {"classifier.weight", "classifier.bias"}) {
    EXPECT_EQ(after.at("base_model.model." + name).to_vector<float>(), before.at(name).to_vector<float>());
  }
  EXPECT_EQ(io::load_json(path("tuned/adapter_config.json")).at("modules_to_save").dump(),
            R"(["classifier"])");
}

TEST_F(LoraTest, RunsGoOnBitForBit) {
  auto classifier = run<ClassifierRun>("labelled.tsv", "");
  classifier.settings.steps = 12, classifier.settings.model.dropout_p = 0.1;
  expect_resumes(classifier, train_classifier, "adapter_model.safetensors");
}

// Of queries and values alone, which are parts of a weight.
TEST_F(LoraTest, LearnsInBf16) {
  auto r = run<ClassifierRun>("labelled.tsv", "tuned");
  r.settings.precision = Precision::bf16;
  const ClassifierSummary summary = train_classifier(r);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
}

TEST_F(LoraTest, AnEmbedderLearnsWithGradientCaching) {
  auto r = run<EmbedderRun>("pairs.tsv", "tuned");
  r.settings.chunk = 3;
  const EmbedderSummary summary = train_embedder(r);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss - 0.1);
  const auto encoder = embed::SentenceEncoder::load(path("tuned")),
             base = embed::SentenceEncoder::load(path("bert"));
  const std::vector<std::string> text = {"the cat"};
  EXPECT_NE(encoder.encode(text).to_vector<float>(), base.encode(text).to_vector<float>());
}

TEST_F(LoraTest, ALanguageModelKeepsTheRest) {
  std::string text;
  for (uint64_t i = 0; i < 300; ++i) text += sentence(i, i % 3) + " ";
  write("text.txt", text);
  LanguageModelRun base;
  base.data = path("text.txt"), base.folder = path("base");
  LanguageModelSettings& s = base.settings;
  s.model.num_layers = 1, s.model.num_heads = 2, s.model.embed_dim = 16, s.model.context = 16,
  s.vocab_size = 280;
  s.steps = 3, s.batch = 4, s.eval_every = 5;
  train_language_model(base);
  LanguageModelRun tuned = base;
  tuned.init = path("base"), tuned.folder = path("tuned");
  start_from(tuned.settings, tuned.init);
  tuned.settings.steps = 20, tuned.settings.lr = 1e-2, tuned.settings.lora = {.rank = 2, .alpha = 8};
  const LanguageModelSummary summary = train_language_model(tuned);
  EXPECT_LT(summary.validation->loss(), summary.progress.first_loss);
  models::LanguageModel before = models::load_language_model(path("base")),
                        after = models::load_language_model(path("tuned"));
  std::map<std::string, std::vector<float>> kept;
  for (const auto& p : nn::named_parameters(before)) kept[p.name] = p.tensor.to_vector<float>();
  int64_t changed = 0;
  for (const auto& p : nn::named_parameters(after))
    changed += p.tensor.to_vector<float>() == kept[p.name] ? 0 : 1;
  EXPECT_GT(changed, 0);
  EXPECT_LE(changed, 2);
  // The model that was measured is the one that loads.
  const auto tokenizer = text::Tokenizer::load(path("tuned"));
  const LanguageModelData data = prepare_language_model_data(text, "text", tuned.settings, &tokenizer);
  EXPECT_EQ(evaluate(after, data.validation, {.batch = 4}).nats, summary.validation->nats);
}

TEST_F(LoraTest, WhatIsWrongIsNamed) {
  auto r = run<ClassifierRun>("labelled.tsv", "bad");
  r.settings.lora.targets = "query,q_proj";
  expect_error<ValueError>([&] { train_classifier(r); },
                           "no layer is called \"q_proj\"; the layers are classifier, ");
  LanguageModelRun none;
  none.data = path("pairs.tsv"), none.folder = path("none"), none.settings.lora.rank = 4;
  expect_error<ValueError>([&] { train_language_model(none); }, "needs --init");
  EXPECT_FALSE(std::filesystem::exists(root_ / "none"));
  r = run<ClassifierRun>("labelled.tsv", "good"), r.settings.steps = 1;
  train_classifier(r);
  const auto with = [&](const std::string& key, const Json& value) {
    Json json = io::load_json(path("good/adapter_config.json"));
    json[key] = value;
    std::filesystem::remove_all(root_ / "wrong");
    std::filesystem::copy(root_ / "good", root_ / "wrong", std::filesystem::copy_options::recursive);
    write("wrong/adapter_config.json", json.dump());
    return [&] { models::load_encoder(path("wrong")); };
  };
  expect_error<FormatError>(with("peft_type", "IA3"), "peft_type \"\\\"IA3\\\"\" is not supported");
  for (const char* key : {"use_dora", "use_qalora", "lora_bias", "made_up"})
    expect_error<FormatError>(with(key, Json(true)), key);
  for (const char* key : {"alora_invocation_tokens", "layer_replication", "trainable_token_indices",
                          "target_parameters", "rank_pattern", "arrow_config", "use_bdlora"})
    expect_error<FormatError>(with(key, Json(std::vector<Json>{1})), key);
  expect_error<FormatError>(with("r", 4), "has rank 3, but r is 4");
  expect_error<FormatError>(with("target_modules", Json(std::vector<Json>{"query"})),
                            "is none of target_modules");
  expect_error<FormatError>(with("target_modules", ".*query"), "does not fit target_modules");
  expect_error<FormatError>(with("target_modules", "(?i).*"), "no regular expression of ECMAScript");
  for (const std::string& large :
       {std::string(101, '(') + "a" + std::string(101, ')'), std::string(4097, 'a'),
        std::string("((a?){40}){40}"), std::string("(a?){9999999999999999999999}")})
    expect_error<FormatError>(with("target_modules", large),
                              "nests over 100 groups or repeats over 1000 times");
  for (const char* fitting : {"all-linear", ".*", R"((?:.*\.layer\.[\d]+\..*?)|classifier)"})
    EXPECT_NO_THROW(with("target_modules", fitting)()) << fitting;
  expect_error<FormatError>(with("exclude_modules", Json(std::vector<Json>{"query"})),
                            "is one of exclude_modules");
  expect_error<FormatError>(with("exclude_modules", Json(".*query")), "exclude_modules \"\\\".*query\\\"\"");
  expect_error<FormatError>(with("layers_to_transform", Json(std::vector<Json>{0})),
                            "is of none of layers_to_transform");
  EXPECT_NO_THROW(with("layers_to_transform", Json(std::vector<Json>{0, 1, 2, 3}))());
  expect_error<FormatError>(with("layers_to_transform", Json(std::vector<Json>{-1})),
                            "must hold numbers of layers");
  expect_error<FormatError>(with("modules_to_save", Json(std::vector<Json>{"classifier", "pooler"})),
                            "missing pooler, which modules_to_save names");
  EXPECT_NO_THROW(with("modules_to_save", Json(std::vector<Json>{"classifier", "score"}))());
  EXPECT_NO_THROW(with("alora_invocation_tokens", Json())());
  EXPECT_NO_THROW(with("made_up", Json(false))());
  expect_error<FormatError>(with("init_lora_weights", Json("pissa_niter_4")), "init_lora_weights");
  expect_error<FormatError>(with("r", 0), "r must be a positive number");
  expect_error<FormatError>(with("lora_alpha", Json()), "lora_alpha must be");
  expect_error<FormatError>(with("base_model_name_or_path", "some/hub"), "which is not a folder here");
  expect_error<FormatError>(with("base_model_name_or_path", io::path_to_json(path("good"))),
                            "is itself an adapter");
}

TEST_F(LoraTest, TensorsThatPeftWouldRefuseAreNamed) {
  auto r = run<ClassifierRun>("labelled.tsv", "good");
  r.settings.steps = 1;
  train_classifier(r);
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    std::filesystem::remove_all(root_ / "wrong");
    std::filesystem::copy(root_ / "good", root_ / "wrong", std::filesystem::copy_options::recursive);
    io::TensorMap tensors = io::load_safetensors(path("good/adapter_model.safetensors"));
    tensors["base_model.model." + name] = tensor;
    io::save_safetensors(path("wrong/adapter_model.safetensors"), tensors);
    return [&] { models::load_encoder(path("wrong")); };
  };
  const models::Encoder whole = models::load_encoder(path("good"));
  const int64_t width = whole.config().embed_dim, labels = whole.config().num_labels;
  ASSERT_NE(width, labels);
  expect_error<FormatError>(with("classifier.weight", Tensor::ones({width, labels})), "does not fit");
  expect_error<FormatError>(with("classifier.bias", Tensor::ones({labels, 1})), "does not fit");
  EXPECT_NO_THROW(with("classifier.weight", Tensor::ones({labels, width}))());
  const std::string query = "bert.encoder.layer.0.attention.self.query.weight";
  expect_error<FormatError>(with(query, Tensor::ones({width, width})), "changes what another tensor");
}

TEST(AdapterOptions, TargetsAreSplitAtCommas) {
  EXPECT_THAT(adapter_options({.rank = 2, .alpha = 4, .targets = "a,,b"}).targets,
              testing::ElementsAre("a", "b"));
  EXPECT_TRUE(adapter_options({.rank = 2}).targets.empty());
}

}  // namespace
}  // namespace multihead::train
