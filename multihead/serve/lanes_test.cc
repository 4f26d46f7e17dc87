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

}  // namespace
}  // namespace multihead::serve
