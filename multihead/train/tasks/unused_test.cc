#include <gmock/gmock.h>

#include <algorithm>

#include "multihead/testing/matchers.h"
#include "multihead/train/tasks/kind.h"

namespace multihead::train {
namespace {

struct Given {
  const char* kind;
  std::vector<std::pair<std::string, std::string>> settings;
  const char* refusal;  // null: none
};

std::unique_ptr<AnyRun> run_of(const Given& given) {
  std::unique_ptr<AnyRun> run = kind_of(given.kind).make();
  const std::vector<Field> settings = run->settings();
  for (const auto& [name, value] : given.settings) {
    const auto field = std::ranges::find(settings, name, &Field::name);
    EXPECT_NE(field, settings.end()) << name;
    assign(*field, std::string_view(value));
    run->request().given.push_back(name);
  }
  return run;
}

TEST(UnusedTest, SettingsWithoutEffectAreRefused) {
  const Given cases[] = {
      {"classifier", {{"eval-texts", "5"}}, "--eval-texts has no effect without validation data"},
      {"reranker", {{"eval-queries", "5"}}, "--eval-queries has no effect without validation data"},
      {"classifier", {{"patience", "2"}}, "--patience has no effect without validation data"},
      {"lm", {{"patience", "2"}, {"eval-every", "0"}}, "--patience has no effect with --eval-every 0"},
      {"classifier", {{"freeze", "true"}, {"lora-rank", "4"}}, "--freeze has no effect with --lora-rank 4"},
      {"classifier", {{"lora-alpha", "4"}}, "--lora-alpha has no effect with --lora-rank 0"},
      {"tagger", {{"momentum", "0.5"}}, "--momentum has no effect with --optimizer \"adamw\""},
      {"lm", {{"beta1", "0.5"}, {"optimizer", "sgd"}}, "--beta1 has no effect with --optimizer \"sgd\""},
      {"lm", {{"rotary-fraction", "0.5"}, {"positions", "learned"}}, "--rotary-fraction has no effect with"},
      {"lm", {{"ff-dropout", "0.5"}, {"block", "attention_only"}}, "--ff-dropout has no effect with --block"},
      {"classifier",
       {{"labels-as-names", "true"}, {"multi-label", "true"}},
       "--labels-as-names has no effect with --multi-label true"},
      {"lm", {{"decay-share", "0.5"}}, "--decay-share has no effect with --schedule \"cosine\""},
      {"classifier",
       {{"max-length", "600"}},
       "a --max-length of 600 tokens is more than the model reads, 512"},
      {"lm", {{"patience", "2"}}, nullptr},
      {"lm", {{"eval-windows", "5"}}, nullptr},  // of a share of the text
      {"tagger", {{"momentum", "0"}}, nullptr},
      {"lm", {{"beta1", "0.5"}}, nullptr},
  };
  for (const Given& given : cases) {
    const auto run = run_of(given);
    if (given.refusal != nullptr) {
      EXPECT_MESSAGE(run->check_settings(), ValueError, given.refusal);
    } else {
      EXPECT_NO_THROW(run->check_settings()) << given.settings[0].first;
    }
  }
}

// Python's names.
TEST(UnusedTest, NamesMayHaveUnderscores) {
  RunRequest request;
  request.given = {"lora_rank"};
  EXPECT_TRUE(is_given(request, "lora-rank"));
  EXPECT_FALSE(is_given(request, "lora"));
}

}  // namespace
}  // namespace multihead::train
