#include "multihead/embed/token_classifier.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/testing/matchers.h"

namespace multihead::embed {
namespace {

text::Tokenizer tagger_tokenizer() {
  return text::Tokenizer::train_wordpiece("the cats sat in paris france cat sat paris france",
                                          {.vocab_size = 200, .min_frequency = 1});
}

// A token's label is chosen by its embedding: the classifier reads what the layers, whose outputs are zero,
// pass through.
TokenClassifier tagger(const std::vector<std::pair<std::string, int>>& labels_of_words,
                       const std::vector<std::string>& names = {"O", "B-X", "I-X", "I-Y"}) {
  text::Tokenizer tokenizer = tagger_tokenizer();
  models::EncoderConfig c;
  c.vocab_size = tokenizer.vocab_size(), c.context = 24, c.num_layers = 1, c.num_heads = 1, c.embed_dim = 4;
  c.token_types = 0, c.pooler = false, c.embedding_norm = false, c.norm_first = true;
  c.head = models::EncoderHead::tokens, c.num_labels = 4, c.labels = names;
  Rng rng(1);
  models::Encoder encoder(models::resolved(c), rng);
  for (const nn::NamedTensor& p : nn::named_parameters(encoder)) {
    Tensor(p.tensor).fill(p.name.find("norm") != std::string::npos && p.name.ends_with("weight") ? 1 : 0);
  }
  for (int64_t i = 0; i < 4; ++i) encoder.classifier.weight.data<float>()[5 * i] = 1;
  for (int64_t t = 0; t < c.vocab_size; ++t) encoder.token_embedding.weight.data<float>()[4 * t] = 1;
  for (const auto& [word, label] : labels_of_words) {
    const auto id = tokenizer.id(word);
    EXPECT_TRUE(id.has_value()) << word;
    float* row = encoder.token_embedding.weight.data<float>() + 4 * id.value_or(0);
    row[0] = 0, row[label] = 1;
  }
  return {std::move(encoder), std::move(tokenizer)};
}

std::vector<std::string> shown(const TokenClassifier& tagger, const std::string& text, Aggregation how,
                               std::vector<std::string> ignored = {"O"}) {
  std::vector<std::string> list;
  const std::vector<std::string> texts = {text};
  const auto found = tagger.entities(texts, {.aggregation = how, .ignored = std::move(ignored)});
  for (const Entity& e : found[0]) {
    list.push_back(e.label + ":" + text.substr(e.place.begin, e.place.end - e.place.begin));
  }
  return list;
}

using Words = std::vector<std::string>;

TEST(TokenClassifierTest, LongTextsAreReadInWindowsThatOverlap) {
  const TokenClassifier t = tagger({{"paris", 1}, {"france", 2}});
  std::string text;
  for (int i = 0; i < 20; ++i) text += i % 5 == 3 ? "paris france " : "the cat sat in ";
  const auto places = [&](int64_t max_length, int64_t stride) {
    std::vector<size_t> found;
    const std::vector<std::string> texts = {"in paris", text};
    const auto all = t.entities(texts, {.max_length = max_length, .stride = stride});
    EXPECT_EQ(all[0].size(), 1u);
    for (const Entity& e : all[1]) {
      EXPECT_EQ(text.substr(e.place.begin, e.place.end - e.place.begin), "paris france");
      found.push_back(e.place.begin);
    }
    return found;
  };
  std::vector<size_t> want;
  for (size_t at = 0; (at = text.find("paris", at)) != text.npos; ++at) want.push_back(at);
  ASSERT_EQ(want.size(), 4u);
  EXPECT_LT(places(12, 0).size(), want.size());  // cut
  for (const int64_t stride : {2, 3, 5, 8}) EXPECT_EQ(places(12, stride), want) << stride;
  const std::vector<std::string> texts = {text};
  EXPECT_THROW(t.entities(texts, {.max_length = 12, .stride = 12}), ValueError);
  const std::vector<std::string> one = {"paris"};  // which needs no windows
  EXPECT_THROW(t.entities(one, {.max_length = 12, .stride = 12}), ValueError);
  EXPECT_THROW(t.entities(texts, {.stride = -1}), ValueError);
  EXPECT_THROW(t.entities(texts, {.aggregation = Aggregation::none, .stride = 1}), ValueError);
}

TEST(TokenClassifierTest, NeighboursOfOneLabelAreAnEntity) {
  const TokenClassifier t = tagger({{"paris", 1}, {"france", 2}, {"cat", 3}});
  EXPECT_EQ(shown(t, "Paris  france in paris paris", Aggregation::simple),
            (Words{"X:Paris  france", "X:paris", "X:paris"}));
  EXPECT_EQ(shown(t, "Paris france", Aggregation::none), (Words{"B-X:Paris", "I-X:france"}));
  EXPECT_EQ(shown(t, "france cat", Aggregation::simple), (Words{"X:france", "Y:cat"}));
  EXPECT_EQ(shown(t, "in france", Aggregation::simple, {}), (Words{"O:in", "X:france"}));
  EXPECT_EQ(shown(t, "", Aggregation::simple), Words{});
}

// As transformers' pipeline has it, where only B- and I- are marks.
TEST(TokenClassifierTest, EntitiesAreNamedByWhatFollowsTheHyphen) {
  const TokenClassifier t = tagger({{"paris", 1}, {"france", 2}, {"cat", 3}}, {"O", "S-X", "b-x", "Y-Z-1"});
  EXPECT_EQ(shown(t, "paris france cat", Aggregation::simple), (Words{"X:paris", "x:france", "Z-1:cat"}));
  EXPECT_EQ(shown(t, "paris", Aggregation::none), Words{"S-X:paris"});
}

TEST(TokenClassifierTest, LabelsToIgnoreAreThoseOfEntities) {
  const TokenClassifier t = tagger({{"paris", 1}, {"cat", 3}});
  EXPECT_EQ(shown(t, "paris cat", Aggregation::simple, {"X"}).back(), "Y:cat");
  EXPECT_NO_THROW(shown(t, "paris", Aggregation::none, {"B-X", "O"}));
  EXPECT_NO_THROW(shown(t, "paris", Aggregation::simple, {""}));
  for (const char* unknown : {"x", "B-X"}) {
    EXPECT_MESSAGE(
        shown(t, "paris", Aggregation::simple, {"O", unknown}), ValueError,
        concat(quote(unknown), ", which is to be ignored, is no label of entities; these are X, Y"));
  }
}

TEST(TokenClassifierTest, WordsHaveOneLabel) {
  const text::Tokenizer tokenizer = tagger_tokenizer();
  const auto tokens = tokenizer.encode("catsat", {.add_template = false});
  ASSERT_GT(tokens.size(), 1u);  // a piece that begins, others that go on
  const std::string first = tokenizer.token(tokens[0]);
  const TokenClassifier t = tagger({{first, 3}});
  EXPECT_EQ(shown(t, "catsat", Aggregation::simple), Words{"Y:" + first});
  EXPECT_EQ(shown(t, "catsat", Aggregation::first), Words{"Y:catsat"});
  EXPECT_EQ(shown(t, "the catsat", Aggregation::max), Words{"Y:catsat"});
}

TEST(TokenClassifierTest, WordsOfColumnsEndAtSpacesAlone) {
  const TokenClassifier t = tagger({{"paris", 1}, {"france", 2}, {"cat", 3}});
  const auto places = [&](const std::string& text, bool at_spaces) {
    Words found;
    const EntityOptions options = {.aggregation = Aggregation::first, .words_end_at_spaces = at_spaces};
    const auto all = t.entities(std::span(&text, 1), options);
    for (const Entity& e : all[0])
      found.push_back(concat(e.label, ":", text.substr(e.place.begin, e.place.end - e.place.begin)));
    return found;
  };
  EXPECT_EQ(places("in paris, cat's france", false), (Words{"X:paris", "Y:cat", "X:france"}));
  EXPECT_EQ(places("in paris, cat's france", true), (Words{"X:paris,", "Y:cat's", "X:france"}));
  EXPECT_EQ(places("(paris france", true), Words{"X:france"});  // the first token is "("
}

TEST(TokenClassifierTest, ATextHasTheSameEntitiesInWhateverCompany) {
  const TokenClassifier t = tagger({{"paris", 1}, {"france", 2}, {"cat", 3}});
  const std::vector<std::string> texts = {"the cat", "paris in france", std::string(99, 'x'), "cats"};
  const auto together = t.entities(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto alone = t.entities(std::span(&texts[i], 1), {.batch_tokens = 1})[0];
    ASSERT_EQ(alone.size(), together[i].size());
    for (size_t k = 0; k < alone.size(); ++k) {
      EXPECT_EQ(alone[k].label, together[i][k].label);
      EXPECT_EQ(alone[k].score, together[i][k].score);
      EXPECT_EQ(alone[k].place, together[i][k].place);
    }
  }
  EXPECT_THROW(t.entities(texts, {.max_length = -1}), ValueError);
}

}  // namespace
}  // namespace multihead::embed
