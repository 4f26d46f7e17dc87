// What the lanes make of jobs, whichever dialect they come in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/serve/lanes-inl.h"
#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::HasSubstr;

TEST(LanguageLaneTest, AnAnswerThatIsCompleteWithItsLastTokenIsNotCutOff) {
  Service service(test_models(), {});
  const auto written = [&](const std::string& most) {
    return ask(
        service, kCompletions,
        R"({"model":"lm","prompt":"the","temperature":0,"response_format":{"type":"regex","regex":"xyz"})" +
            most + "}");
  };
  const Answer whole = written("");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const int64_t size = whole.json().at("usage").at("completion_tokens").as_int();
  const Answer exact = written(concat(R"(,"max_tokens":)", size));
  EXPECT_EQ(choice_of(exact).at("text").as_string(), "xyz");
  EXPECT_EQ(choice_of(exact).at("finish_reason").as_string(), "stop");
  const Answer cut = written(concat(R"(,"max_tokens":)", size - 1));
  EXPECT_EQ(choice_of(cut).at("finish_reason").as_string(), "length");
}

std::vector<Model> scoring_models() {
  std::vector<Model> models;
  models.push_back({.name = "short",
                    .any = embed::TextClassifier(test_encoder(models::EncoderHead::classification, 2),
                                                 test_tokenizer(), 8)});
  models.push_back({.name = "linear", .any = test_linear_classifier()});
  const char* prompts =
      R"({"model_type":"CrossEncoder","prompts":{"q":"the cat "},"default_prompt_name":"q"})";
  models.push_back({.name = "prompted",
                    .any = test_folder_classifier(models::EncoderHead::classification,
                                                  {{"config_sentence_transformers.json", prompts}})});
  return models;
}

TEST(ScoreLaneTest, ThePromptOfPairsIsCounted) {
  Service service(scoring_models(), {});
  const auto ranked = [&](const std::string& document) {
    return ask(service, "/v1/rerank",
               R"({"model":"prompted","query":"cat","truncate":false,"documents":[")" + document + "\"]}");
  };
  const auto size = [](const std::string& document) {
    return std::ssize(test_classifier().tokens(embed::TextPair("the cat cat", document), 0).ids);
  };
  std::string document = "mat";
  EXPECT_EQ(ranked(document).json().at("usage").at("prompt_tokens").as_int(), size(document));
  while (size(document + " mat") <= 24) document += " mat";
  EXPECT_EQ(ranked(document).status, 200);
  document += " mat";
  const Answer refused = ranked(document);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr(concat("has ", size(document), " tokens, the model reads 24")));
}

TEST(ScoreLaneTest, TextsAreNotCutUnasked) {
  Service service(scoring_models(), {});
  const auto labels = [&](const std::string& model, const std::string& rest) {
    return ask(service, "/predict", R"({"model":")" + model + R"(","inputs":")" + rest + "}");
  };
  EXPECT_EQ(labels("short", R"(xxxxxxxx")").status, 200);
  const Answer refused = labels("short", R"(xxxxxxxxx")");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("input 0 has 9 tokens, the model reads 8"));
  EXPECT_THAT(labels("linear", R"(the cat sat on the mat")").body, HasSubstr("tokens, the model reads 6"));
  EXPECT_EQ(labels("linear", R"(the cat sat on the mat","truncate":true)").status, 200);
  EXPECT_EQ(labels("short", R"(xxxxxxxxx","truncate":true)").status, 200);
  const std::string figures = ask(service, "/metrics", "", "GET").body;
  EXPECT_THAT(figures, HasSubstr("multihead_prompt_tokens_total{model=\"short\"} 16\n"));
  EXPECT_THAT(figures, HasSubstr("multihead_prompt_tokens_total{model=\"linear\"} 6\n"));
}

}  // namespace
}  // namespace multihead::serve
