// Scores and vectors as text-embeddings-inference and rerankers' clients ask for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::HasSubstr;

TEST(ScoresTest, ErrorsNameTheMemberThatWasSent) {
  Service service(test_models(), {});
  std::string many = "cat";
  for (int i = 0; i < 40; ++i) many += " cat";
  const std::string list = R"(["cat",")" + many + "\"]";
  const auto refusal = [&](const std::string& path, const std::string& members) {
    const Answer answer = ask(service, path, "{" + members + "}");
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body;
  };
  const std::string cohere = refusal("/v1/rerank", R"("query":"a","truncate":false,"documents":)" + list);
  EXPECT_THAT(cohere, HasSubstr("document 1 has "));
  EXPECT_THAT(cohere, HasSubstr(R"("param":"documents")"));
  EXPECT_THAT(refusal("/rerank", R"("query":"a","texts":)" + list), HasSubstr("text 1 has "));
  EXPECT_THAT(refusal("/predict", R"("inputs":[["a"],[")" + many + "\"]]"), HasSubstr("input 1 has "));
  EXPECT_THAT(refusal("/embed", R"("inputs":)" + list), HasSubstr("input 1 has "));
  EXPECT_THAT(refusal(kEmbeddings, R"("model":"enc","input":)" + list), HasSubstr(R"("param":"input")"));
}

// They have length 1, however many are kept, unless that is refused.
TEST(ScoresTest, DimensionsAreScaledAsAsked) {
  Service service(test_models(), {});
  const auto vector_of = [](const Json& numbers) {
    std::vector<float> row;
    for (const Json& number : numbers.items()) row.push_back(static_cast<float>(number.as_double()));
    return row;
  };
  const auto embedded = [&](const std::string& members) {
    const Answer answer = ask(service, "/embed", R"({"inputs":"a cat")" + members + "}");
    return vector_of(answer.json().at(size_t{0}));
  };
  const auto length = [](const std::vector<float>& row) {
    double squares = 0;
    for (const float x : row) squares += double{x} * x;
    return std::sqrt(squares);
  };
  const std::vector<float> raw = embedded(R"(,"normalize":false)");
  ASSERT_GT(std::abs(length(raw) - 1), 0.01);
  EXPECT_EQ(embedded(R"(,"normalize":false,"dimensions":5)"),
            std::vector<float>(raw.begin(), raw.begin() + 5));
  EXPECT_EQ(embedded(R"(,"normalize":false,"dimensions":16)"), raw);
  EXPECT_NEAR(length(embedded(R"(,"dimensions":5)")), 1, 1e-6);
  for (const char* count : {"5", "16"}) {
    const Answer answer =
        ask(service, kEmbeddings, concat(R"({"model":"enc","input":"a cat","dimensions":)", count, "}"));
    EXPECT_NEAR(length(vector_of(answer.json().at("data").at(size_t{0}).at("embedding"))), 1, 1e-6) << count;
  }
}

}  // namespace
}  // namespace multihead::serve
