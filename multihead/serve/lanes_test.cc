// What the lanes make of jobs, whichever dialect they come in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>

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

// Answers when all is over, unless it cannot.
class BriefListener : public GenerationListener {
 public:
  BriefListener(std::shared_ptr<Reply> reply, bool fails) : reply_(std::move(reply)), fails_(fails) {}
  void token(size_t, const Token&) override {}
  void end(size_t, std::string_view, bool) override {
    if (fails_) throw std::runtime_error("cannot write this");
  }
  void finish(const Usage& usage) override { reply_->answer_json(std::to_string(usage.new_tokens)); }

 private:
  std::shared_ptr<Reply> reply_;
  bool fails_;
};

TEST(LanguageLaneTest, OnlyWhatCannotBeWrittenFails) {
  constexpr int32_t kSpoiled = 200;  // its embedding is not finite
  Writer writer{{test_language_model(), test_tokenizer()}, {}};
  std::fill_n(writer.model.token_embedding.weight.data<float>() + kSpoiled * 16, 16,
              std::numeric_limits<float>::quiet_NaN());
  LanguageLane lane(writer, {}, 64);
  std::vector<std::shared_ptr<Reply>> replies;
  for (const int32_t first : {1, 2, kSpoiled, 3}) {
    replies.push_back(std::make_shared<Reply>([] {}, Reply::Clock::time_point::max()));
    GenerationJob job;
    job.reply = replies.back();
    job.prompts = [first] { return std::vector<TokenIds>{{first, 1}}; };
    job.options.max_new_tokens = 3;
    job.listener = std::make_unique<BriefListener>(job.reply, first == 1);
    lane.add(std::move(job));
  }
  while (lane.step()) {
  }
  const char* const said[] = {"cannot write this", "3", "not finite", "3"};
  for (size_t i = 0; i < 4; ++i) {
    const Answer answer = answer_of(*replies[i]);
    EXPECT_EQ(answer.status, i % 2 == 0 ? 500 : 200) << i;
    EXPECT_THAT(answer.body, HasSubstr(said[i]));
  }
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

TEST(ScoreLaneTest, WhatTheModelCannotReadIsRefused) {
  Service service(scoring_models(), {});
  const Answer nothing = ask(service, "/predict", R"({"model":"short","inputs":[["a"],[""]]})");
  EXPECT_EQ(nothing.status, 400);
  EXPECT_THAT(nothing.body, HasSubstr("input 1 has no tokens"));
  const Answer pair = ask(service, "/predict", R"({"model":"linear","inputs":[["a","b"]]})");
  EXPECT_EQ(pair.status, 400);
  EXPECT_THAT(pair.body, HasSubstr("the model reads single texts, not pairs"));
}

// Cannot compute "bad"; a text's row is its size.
class FussyLane : public InputLane<ScoreJob> {
 public:
  int64_t computed = 0;

 private:
  void prepare(Live& live) override { live.sizes.assign(live.job.texts.size(), 1); }
  Tensor compute(std::span<const Pick> picks) override {
    Tensor rows = Tensor::empty({std::ssize(picks), 1}, Dtype::f32);
    for (size_t i = 0; i < picks.size(); ++i) {
      const std::string& text = picks[i].live->job.texts[picks[i].input];
      if (text == "bad") throw std::runtime_error("too bad");
      rows.data<float>()[i] = static_cast<float>(text.size());
    }
    computed += std::ssize(picks);
    return rows;
  }
  void finish(Live& live) override {
    std::string answer;
    for (const float size : live.rows) answer += std::to_string(static_cast<int>(size));
    live.job.reply->answer_json(answer);
  }
};

TEST(InputLaneTest, OnlyWhatCannotBeComputedFails) {
  FussyLane lane;
  std::vector<std::shared_ptr<Reply>> replies;
  for (const std::vector<std::string>& texts :
       {std::vector<std::string>{"a", "abc"}, {"ab", "bad", "a"}, {"bad", "abc"}, {"abcd"}}) {
    replies.push_back(std::make_shared<Reply>([] {}, Reply::Clock::time_point::max()));
    lane.add({.reply = replies.back(), .texts = texts});
  }
  EXPECT_TRUE(lane.step());
  EXPECT_FALSE(lane.step());
  EXPECT_EQ(answer_of(*replies[0]).body, "13");
  EXPECT_EQ(answer_of(*replies[3]).body, "4");
  for (const size_t i : {1, 2}) {
    EXPECT_FALSE(replies[i]->cancelled()) << "nobody has left";
    const Answer failed = answer_of(*replies[i]);
    EXPECT_EQ(failed.status, 500);
    EXPECT_THAT(failed.body, HasSubstr("too bad"));
  }
  EXPECT_EQ(lane.computed, 4) << "the others' two and one, and what came before the bad text";
}

}  // namespace
}  // namespace multihead::serve
