#include "multihead/embed/text_classifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/sentence_folder.h"

namespace multihead::embed {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

models::Encoder make_encoder(models::EncoderHead head, int64_t labels = 0) {
  models::EncoderConfig c;
  c.vocab_size = 300, c.context = 24, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.head = head;
  c.num_labels = labels;
  Rng rng(3);
  return {models::resolved(c), rng};
}

text::Tokenizer mask_tokenizer() {
  return text::Tokenizer::train_bpe("the cat sat on the mat",
                                    {.vocab_size = 262, .special = {.others = {"[MASK]"}}});
}

TEST(TextClassifierTest, ATextHasTheSameLogitsInWhateverCompany) {
  const TextClassifier classifier(make_encoder(models::EncoderHead::classification, 3), mask_tokenizer());
  const std::vector<std::string> texts = {"the cat", std::string(200, 'x'), "m", "the cat sat on the mat"};
  const Tensor all = classifier.logits(texts);
  ASSERT_EQ(all.shape(), Shape({4, 3}));
  for (const int64_t batch_tokens : {1, 30, 4096}) {
    const Tensor again = classifier.logits(texts, {.batch_tokens = batch_tokens});
    EXPECT_EQ(again.to_vector<float>(), all.to_vector<float>()) << batch_tokens;
  }
  EXPECT_EQ(classifier.label(2), "LABEL_2");
  EXPECT_EQ(classifier.logits(std::vector<std::string>{}).size(0), 0);
  EXPECT_THROW(classifier.logits(texts, {.max_length = -1}), ValueError);
  EXPECT_THROW(classifier.logits(texts, {.batch_tokens = 0}), ValueError);
}

TEST(TextClassifierTest, AFolderLimitsTextsAndSaysWhatAScoreIs) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / concat("multihead_classifier_", ::getpid())).string();
  models::Encoder encoder = make_encoder(models::EncoderHead::classification, 1);
  models::save_encoder(encoder, folder);
  text::Tokenizer::train_wordpiece("the cat sat on the mat").save(folder);
  const auto load_with = [&](const char* file, const char* content) {
    write_file_atomically(folder + "/" + file, content);
    return TextClassifier::load(folder);
  };
  EXPECT_EQ(TextClassifier::load(folder).max_length(), 24);
  EXPECT_TRUE(TextClassifier::load(folder).has_sigmoid());
  const TextClassifier limited = load_with("sentence_bert_config.json", R"({"max_seq_length": 5})");
  EXPECT_EQ(limited.max_length(), 5);
  EXPECT_EQ(limited.text_length(), 24);
  const std::vector<TextPair> pair = {{"mat", "the cat sat on the mat on the mat"}};
  const auto short_logits = limited.logits(pair).to_vector<float>();
  EXPECT_EQ(limited.logits(pair, {.max_length = 5}).to_vector<float>(), short_logits);
  EXPECT_NE(limited.logits(pair, {.max_length = 24}).to_vector<float>(), short_logits);
  const std::vector<std::string> text = {pair[0].second};  // transformers reads it to the model's end
  EXPECT_EQ(limited.logits(text).to_vector<float>(),
            limited.logits(text, {.max_length = 24}).to_vector<float>());
  const char* own = "config_sentence_transformers.json";
  EXPECT_FALSE(load_with(own, R"({"activation_fn": "torch.nn.modules.linear.Identity"})").has_sigmoid());
  EXPECT_TRUE(load_with(own, R"({"activation_fn": "torch.nn.modules.activation.Sigmoid"})").has_sigmoid());
  EXPECT_THROW(load_with(own, R"({"activation_fn": "torch.nn.modules.activation.Tanh"})"), FormatError);
  load_with(own, R"({"activation_fn": "torch.nn.modules.linear.Identity"})");
  Json config = io::load_json(folder + "/config.json");
  config["sentence_transformers"] = Json::object({{"activation_fn", "torch.nn.modules.activation.Sigmoid"}});
  EXPECT_FALSE(load_with("config.json", config.dump().c_str()).has_sigmoid()) << "the newer file counts";
  EXPECT_MESSAGE(load_with("sentence_bert_config.json", R"({"transformer_task": "feature-extraction"})"),
                 FormatError, "transformer_task");
  EXPECT_MESSAGE(load_with("sentence_bert_config.json", R"({"config_kwargs": {"hidden_act": "relu"}})"),
                 FormatError, "config_kwargs");
  load_with(
      "sentence_bert_config.json",
      R"({"max_seq_length": 5, "transformer_task": "sequence-classification", "module_output_name": "scores"})");
  EXPECT_MESSAGE(
      load_with("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                                               {"type": "sentence_transformers.LogitScore", "path": "1"}])"),
      FormatError, "\"LogitScore\" is not supported in a cross-encoder");
  std::filesystem::remove(folder + "/modules.json");
  const char* prompts =
      R"({"model_type": "CrossEncoder", "prompts": {"q": "the cat "}, "default_prompt_name": "q"})";
  const std::vector<TextPair> with = {{"the cat mat", pair[0].second}};
  EXPECT_EQ(load_with(own, prompts).logits(pair).to_vector<float>(), limited.logits(with).to_vector<float>());
  EXPECT_EQ(pair_prompt(folder), "the cat ");
  EXPECT_EQ(TextClassifier::load(folder).tokens(pair[0], 0).ids, limited.tokens(with[0], 0).ids);
  EXPECT_GT(limited.tokens(with[0], 0).ids.size(), limited.tokens(pair[0], 0).ids.size());
  EXPECT_EQ(limited.tokens(with[0], 5).ids.size(), 5u);
  std::filesystem::remove_all(folder);
}

// SetFit's: texts are as long as the embedder reads, behind its prompt.
TEST(TextClassifierTest, ALinearHeadReadsTextsAsItsEmbedderDoes) {
  const testing::SentenceFolder folder;
  folder.write("modules.json", "[" + testing::module("Transformer", "") + "," +
                                   testing::module("Pooling", "1") + "," + testing::module("Dense", "2") +
                                   "]");
  folder.write("1/config.json", R"({"pooling_mode": "mean"})");
  folder.write("2/config.json",
               R"({"out_features": 2, "activation_function": "torch.nn.modules.linear.Identity"})");
  Rng rng(2);
  io::save_safetensors(folder.path + "/2/model.safetensors", {{"linear.weight", randn({2, 24}, rng)}});
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 6})");
  folder.write("config_sentence_transformers.json",
               R"({"prompts": {"p": "the "}, "default_prompt_name": "p"})");
  Json config = io::load_json(folder.path + "/config.json");
  config["id2label"] = Json::object({{"0", "no"}, {"1", "yes"}});
  folder.write("config.json", config.dump());
  const TextClassifier classifier = TextClassifier::load(folder.path);
  EXPECT_EQ(classifier.label(1), "yes");
  EXPECT_FALSE(classifier.reads_pairs());
  EXPECT_EQ(classifier.text_length(), 6);
  EXPECT_EQ(classifier.tokens("cat", 0).ids, testing::make_tokenizer().encode("the cat"));
  const std::vector<TextPair> pairs = {{"the", "cat"}};
  EXPECT_MESSAGE(classifier.logits(pairs), ValueError, "single texts, not pairs");
}

TEST(TextClassifierTest, ProbabilitiesOfOneLabelAreLogistic) {
  const Tensor one = Tensor::of<float>({2, 1}, {0, 2});
  EXPECT_NEAR(label_probabilities(one).to_vector<float>()[1], 1 / (1 + std::exp(-2.0)), 1e-6);
  const std::vector<float> two = label_probabilities(Tensor::of<float>({1, 2}, {1, 1})).to_vector<float>();
  EXPECT_FLOAT_EQ(two[0], 0.5F);
  const Tensor logits = Tensor::of<float>({1, 2}, {0, 2});
  using enum models::ProblemType;
  const auto scores = [&](models::ProblemType type) {
    return label_probabilities(logits, type).to_vector<float>();
  };
  EXPECT_FLOAT_EQ(scores(multi_label)[0], 0.5F);
  EXPECT_NEAR(scores(multi_label)[1], 1 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_EQ(scores(regression), logits.to_vector<float>());
  EXPECT_EQ(scores(single_label), label_probabilities(logits).to_vector<float>());
  EXPECT_FLOAT_EQ(label_probabilities(one, single_label).to_vector<float>()[0], 0.5F);
}

TEST(FillMaskTest, GuessesEachMaskBestFirst) {
  const models::Encoder encoder = make_encoder(models::EncoderHead::masked_lm);
  const text::Tokenizer tokenizer = mask_tokenizer();
  const auto masks = fill_mask(encoder, tokenizer, "the [MASK] sat on the [MASK]", 4);
  ASSERT_EQ(masks.size(), 2u);
  for (const auto& guesses : masks) {
    ASSERT_EQ(guesses.size(), 4u);
    for (size_t i = 1; i < guesses.size(); ++i) EXPECT_GE(guesses[i - 1].probability, guesses[i].probability);
  }
  EXPECT_EQ(fill_mask(encoder, tokenizer, "[MASK]", 10'000)[0].size(), 300u);
  EXPECT_THAT([&] { fill_mask(encoder, tokenizer, "none"); },
              ThrowsMessage<ValueError>(HasSubstr("the text has no [MASK]")));
  const models::Encoder other = make_encoder(models::EncoderHead::tokens, 2);
  EXPECT_THAT([&] { fill_mask(other, tokenizer, "[MASK]"); },
              ThrowsMessage<ValueError>(HasSubstr("expected a masked_lm head")));
  EXPECT_THAT([&] { TextClassifier(other, tokenizer); },
              ThrowsMessage<ValueError>(HasSubstr("expected a sequence classification head, got tokens")));
}

}  // namespace
}  // namespace multihead::embed
