// Scores and vectors as text-embeddings-inference and rerankers' clients ask for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace multihead::serve
