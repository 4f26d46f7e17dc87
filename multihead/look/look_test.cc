#include "multihead/look/look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/look/laboratory.h"

namespace multihead::look {
namespace {

using testing::HasSubstr;

constexpr const char* kText = "the cat sat on the mat and the rat sat on the cat";

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer one = text::Tokenizer::train_characters(kText);
  return one;
}

models::LanguageModel language_model(int64_t kv_heads = 4) {
  models::LanguageModelConfig c;
  c.vocab_size = tokenizer().vocab_size(), c.context = 64, c.num_layers = 2, c.num_heads = 4;
  c.num_kv_heads = kv_heads, c.embed_dim = 32, c.positions = models::Positions::rotary, c.init_std = 0.4;
  Rng rng(6);
  return {c, rng};
}

TEST(LookTest, ARunHoldsWhatThePageShows) {
  const AttentionRun run = look(language_model(2), tokenizer(), "the cat");
  ASSERT_EQ(run.views.size(), 1U);
  const AttentionView& view = run.views[0];
  EXPECT_TRUE(view.causal);
  EXPECT_EQ(view.queries, (std::vector<std::string>{"t", "h", "e", " ", "c", "a", "t"}));
  EXPECT_EQ(view.weights[1].shape(), (Shape{1, 4, 7, 7}));
  EXPECT_EQ(run.next.size(), 5U);
  EXPECT_EQ(run.target, run.next[0].first);
  EXPECT_NEAR(run.probability, run.next[0].second, 1e-6);
  EXPECT_EQ(run.lens.size(), 3U);
  EXPECT_EQ(run.ablation.size(), 2U);
  EXPECT_EQ(run.attributions.of_tokens.size(), 7U);
  ASSERT_TRUE(view.neurons.has_value());
  // Query times key, scaled, is the score whose softmax the weights are.
  const Tensor &q = view.neurons->queries[0], &k = view.neurons->keys[0];
  EXPECT_EQ(k.shape(), (Shape{1, 7, 2, 8}));
  const auto score = [&](int64_t head, int64_t query, int64_t key) {
    double sum = 0;
    for (int64_t d = 0; d < 8; ++d) {
      sum += q.contiguous().data<float>()[(query * 4 + head) * 8 + d] *
             k.contiguous().data<float>()[(key * 2 + head / 2) * 8 + d];
    }
    return sum * view.neurons->scale;
  };
  const Tensor weights = view.weights[0].contiguous();
  const auto weight = [&](int64_t head, int64_t key) {
    return weights.data<float>()[(head * 7 + 5) * 7 + key];
  };
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(std::log(weight(head, 1) / weight(head, 4)), score(head, 5, 1) - score(head, 5, 4), 1e-4);
  }
}

TEST(LookTest, ChangesChangeTheRun) {
  const models::LanguageModel model = language_model();
  const AttentionRun plain = look(model, tokenizer(), "the cat");
  const AttentionRun cut = look(model, tokenizer(), "the cat", {.cut = {{1, 2, 5, 3}}});
  const auto at = [](const AttentionRun& run, int64_t head) {
    return run.views[0].weights[1].contiguous().data<float>()[(head * 7 + 5) * 7 + 3];
  };
  EXPECT_GT(at(plain, 2), 0);
  EXPECT_EQ(at(cut, 2), 0);
  EXPECT_EQ(at(cut, 1), at(plain, 1));
  EXPECT_TRUE(cut.ablation.empty());
  const AttentionRun off = look(model, tokenizer(), "the cat", {.off = {{0, 1}, {0, 3}}});
  EXPECT_EQ(off.off, (std::vector<std::string>{"0.1", "0.3"}));
  EXPECT_NE(off.next[0].second, plain.next[0].second);
  // Its own weights are those of before: what it reads has not changed, what it says is gone.
  EXPECT_EQ(off.views[0].weights[0].to_vector<float>(), plain.views[0].weights[0].to_vector<float>());
  EXPECT_NE(off.views[0].weights[1].to_vector<float>(), plain.views[0].weights[1].to_vector<float>());
}

TEST(LookTest, PartsAndWhatIsRefused) {
  const models::LanguageModel model = language_model();
  const AttentionRun some = look(model, tokenizer(), "the cat", {.layers = {1}, .heads = {0, 3}});
  EXPECT_EQ(some.views[0].weights.size(), 1U);
  EXPECT_EQ(some.views[0].weights[0].size(1), 2);
  // Rows of queries are those of the whole.
  const AttentionRun whole = look(model, tokenizer(), "the cat"),
                     rows = look(model, tokenizer(), "the cat", {.rows = {2, 6}});
  const AttentionView& part = rows.views[0];
  EXPECT_EQ(part.queries, (std::vector<std::string>{"e", "t"}));
  EXPECT_EQ(part.keys.size(), 7U);
  EXPECT_EQ(part.weight_count(), 2 * 4 * 2 * 7);
  EXPECT_EQ(part.weights[1].to_vector<float>()[7 + 3],
            whole.views[0].weights[1].to_vector<float>()[6 * 7 + 3]);
  const AttentionRun one = look(model, tokenizer(), "the cat", {.layers = {1}, .heads = {2}, .rows = {6}});
  EXPECT_EQ(one.views[0].weights[0].to_vector<float>()[3],
            whole.views[0].weights[1].to_vector<float>()[(2 * 7 + 6) * 7 + 3]);
  EXPECT_EQ(one.ablation, whole.ablation) << "measures are of the whole model";
  EXPECT_EQ(part.neurons->queries[0].size(1), 2);
  EXPECT_EQ(part.neurons->keys[0].size(1), 7);
  EXPECT_EQ(to_html({.title = "", .runs = {rows}}).find("\"half\":true"), std::string::npos);
  EXPECT_FALSE(look(model, tokenizer(), "the cat", {.measures = false}).views[0].neurons.has_value());
  const auto problem = [&](const std::string& text, const Look& wanted) -> std::string {
    try {
      look(model, tokenizer(), text, wanted);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem("", {}), "look: the text is empty");
  EXPECT_EQ(problem("cat", {.rows = {3}}), "look: tokens must be in [0, 2], got 3");
  EXPECT_EQ(problem("cat", {.heads = {4}}), "look: heads must be in [0, 3], got 4");
  EXPECT_EQ(problem("cat", {.off = {{2, 0}}}), "no head 2.0: layers are 0 to 1, heads 0 to 3");
  EXPECT_EQ(problem("cat", {.cut = {{0, 0, 1, 1}}}),
            "the edge from token 1 to 1 cannot be cut: 0 <= key < query < 3");
}

TEST(LookTest, PagesAndAnswersHoldTheSame) {
  const models::LanguageModel model = language_model();
  AttentionPage page{.title = "<b>&",
                     .runs = {look(model, tokenizer(), "the cat"), look(model, tokenizer(), "the rat")}};
  page.bits = bits_for(page.runs);
  EXPECT_EQ(page.bits, 16);
  const std::string html = to_html(page);
  EXPECT_THAT(html, HasSubstr("&#60;b&#62;&#38;"));
  EXPECT_THAT(html, HasSubstr("connect-src 'none'"));
  for (const char* id : {"w0-0", "w1-0", "n0-0", "n1-0"})
    EXPECT_THAT(html, HasSubstr(concat("id=\"", id, "\"")));
  page.lab = "the cat";
  EXPECT_THAT(to_html(page), HasSubstr("connect-src 'self'"));
  const Json answer = to_json(page);
  EXPECT_EQ(answer.at("runs").size(), 2U);
  const Json& view = answer.at("runs").at(0).at("views").at(0);
  const std::string weights = view.at("weights").at("text").as_string();
  EXPECT_THAT(html, HasSubstr(weights));
  EXPECT_EQ(view.at("neurons").at("size").as_int(), 8);
}

TEST(LookTest, ALaboratoryAnswersWithoutATokenizer) {
  const models::LanguageModel model = language_model();
  const auto run = [&](const std::string& text, const Look& changes) {
    NamedTokens tokens{tokenizer().encode(text), std::vector<std::string>(text.size(), "?"),
                       [](int32_t id) { return concat("<", id, ">"); }};
    return look(model, tokens, changes);
  };
  const Json changed =
      answer(R"({"text": "the cat", "off": ["1.3"], "cut": [[0, 2, 3, 1]]})", run).at("runs");
  ASSERT_EQ(changed.size(), 2U);
  EXPECT_EQ(changed.at(0).at("title").as_string(), "changed");
  EXPECT_EQ(changed.at(0).at("off").at(0).as_string(), "1.3");
  const Json& plain = changed.at(1);
  EXPECT_EQ(plain.at("title").as_string(), "as it is");
  EXPECT_EQ(plain.at("views").at(0).at("keys").at(6).as_string(), "?");
  const Prediction best = look(model, tokenizer(), "the cat").next[0];
  const int32_t id = tokenizer().encode(best.first)[0];
  EXPECT_EQ(plain.at("next").at(0).at(0).as_string(), concat("<", id, ">"));
  EXPECT_NEAR(plain.at("next").at(0).at(1).as_double(), best.second, 1e-5);
  EXPECT_EQ(answer(R"({"text": "the", "off": [], "cut": []})", run).at("runs").size(), 1U);
  for (const char* head : {"", "1", "1.", ".1", "1.x", "1.1.1", "1,1"}) {
    EXPECT_THAT([&] { answer(concat(R"({"text": "the", "cut": [], "off": [")", head, "\"]}"), run); },
                testing::ThrowsMessage<ValueError>(HasSubstr("a head is LAYER.HEAD")));
  }
}

TEST(LookTest, EncodersSeeBothSides) {
  models::EncoderConfig c;
  c.vocab_size = tokenizer().vocab_size(), c.context = 32, c.num_layers = 2, c.num_heads = 4,
  c.embed_dim = 32;
  c.head = models::EncoderHead::masked_lm, c.init_std = 0.4;
  Rng rng(7);
  const models::Encoder model(c, rng);
  const AttentionRun run = look(model, tokenizer(), "the cat", {.heads = {1, 2}});
  const AttentionView& view = run.views.at(0);
  EXPECT_FALSE(view.causal);
  ASSERT_EQ(view.weights[0].shape(), (Shape{1, 2, 7, 7}));
  const Tensor weights = view.weights[1].contiguous();
  EXPECT_GT(weights.data<float>()[6], 0);  // the first token sees the last
  ASSERT_TRUE(view.neurons.has_value());
  const Tensor q = view.neurons->queries[1].contiguous(), k = view.neurons->keys[1].contiguous();
  const auto score = [&](int64_t key) {  // of the first head that is shown, from the first token
    double sum = 0;
    for (int64_t d = 0; d < 8; ++d) sum += q.data<float>()[d] * k.data<float>()[key * 16 + d];
    return sum * view.neurons->scale;
  };
  EXPECT_NEAR(std::log(weights.data<float>()[6] / weights.data<float>()[2]), score(6) - score(2), 1e-4);
  ASSERT_EQ(run.lens.size(), 1U);
  EXPECT_EQ(run.lens[0].size(), 7U);
  EXPECT_THROW(look(model, tokenizer(), "cat", {.off = {{0, 0}}}), ValueError);
  EXPECT_THROW(look(model, tokenizer(), ""), ValueError);
}

TEST(LookTest, TranslatorsHaveThreeViews) {
  models::Seq2SeqConfig c;
  c.source_vocab_size = tokenizer().vocab_size() + 1, c.max_positions = 20, c.encoder_layers = 2,
  c.decoder_layers = 1;
  c.num_heads = 2, c.embed_dim = 16, c.ffn_dim = 16, c.eos_id = c.source_vocab_size - 1;
  c.pad_id = c.decoder_start_id = c.eos_id;
  Rng rng(2);
  const models::Seq2Seq model(c, rng);
  const AttentionRun run = look(model, tokenizer(), tokenizer(), "the cat", "on");
  ASSERT_EQ(run.views.size(), 3U);
  EXPECT_EQ(run.views[0].queries, (std::vector<std::string>{"<start>", "o", "n"}));
  EXPECT_EQ(run.views[0].keys.back(), "<end>");
  EXPECT_EQ(run.views[1].weights.size(), 2U);
}

}  // namespace
}  // namespace multihead::look
