// What each dialect answers and refuses, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::HasSubstr;

struct Refusal {
  std::string path, members, message;
  int status = 400;
};

TEST(DialectsTest, WhatIsNotSupportedIsRefusedByName) {
  Service service(test_models(), {.max_inputs = 8, .max_tokens = 50});
  const std::string chat = R"("model":"lm","messages":[{"role":"user","content":"a"}])";
  const std::string prompt = R"("model":"lm","prompt":"a")", input = R"("model":"enc","input":"a")";
  const Refusal cases[] = {
      {kChat, R"("messages":[])", "model is missing"},
      {kChat, R"("model":7)", "model must be a text, got \\\"7\\\""},
      {kChat, R"("model":"x","messages":[])", "there is no model", 404},
      {kChat, R"("model":"enc","messages":[])", "does not write texts"},
      {kChat, R"("model":"lm")", "messages is missing"},
      {kChat, R"("model":"lm","messages":{})", "messages must be an array"},
      {kChat, R"("model":"lm","messages":[7])", "messages[0] must be an object"},
      {kChat, R"("model":"lm","messages":[{"role":"king","content":"a"}])", "messages[0].role must be"},
      {kChat, R"("model":"lm","messages":[{"role":"user"}])", "messages[0].content is missing"},
      {kChat, R"("model":"lm","messages":[{"role":"user","content":"a","x":1}])", "messages[0].x"},
      {kChat, R"("model":"lm","messages":[{"role":"user","content":[{"type":"image_url"}]}])",
       "content[0].type"},
      {kChat, R"("model":"lm","messages":[{"role":"tool","content":"a"}])", "no tools"},
      {kChat, chat + R"(,"temperature":"hot")", "temperature must be a number from 0 to 2"},
      {kChat, chat + R"(,"temperature":-1)", "temperature must be"},
      {kChat, chat + R"(,"temperature":1e999)", "number is too large"},
      {kChat, chat + R"(,"temperature":NaN)", "invalid literal"},
      {kChat, chat + R"(,"top_p":0)", "top_p must be"},
      {kChat, chat + R"(,"n":0)", "n must be an integer from 1 to 128"},
      {kChat, chat + R"(,"n":9)", "ask for 9 texts, the limit is 8"},
      {kChat, chat + R"(,"n":1.5)", "n must be"},
      {kChat, chat + R"(,"seed":"x")", "seed must be"},
      {kChat, chat + R"(,"stop":[1])", "stop must be"},
      {kChat, chat + R"(,"stop":[""])", "stop must be"},
      {kChat, chat + R"(,"stop":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])",
       "at most 16"},
      {kChat, chat + R"(,"stream":1)", "stream must be true or false"},
      {kChat, chat + R"(,"stream_options":{})", "stream_options needs stream"},
      {kChat, chat + R"(,"stream":true,"stream_options":{"x":1})", "stream_options.x"},
      {kChat, chat + R"(,"top_logprobs":2)", "top_logprobs needs logprobs"},
      {kChat, chat + R"(,"logprobs":true,"top_logprobs":21)", "top_logprobs must be"},
      {kChat, chat + R"(,"max_tokens":0)", "max_tokens must be"},
      {kChat, chat + R"(,"max_tokens":51)", "the server's limit is 50"},
      {kChat, chat + R"(,"max_tokens":5,"max_completion_tokens":6)", "differ"},
      {kChat, chat + R"(,"tools":[{}])", "tools is supported only as []"},
      {kChat, chat + R"(,"tool_choice":"required")", "tool_choice is supported only as"},
      {kChat, chat + R"(,"response_format":{"type":"json_object"})", "response_format is supported only as"},
      {kChat, chat + R"(,"frequency_penalty":0.5)", "frequency_penalty is supported only as 0"},
      {kChat, chat + R"(,"logit_bias":{"1":2})", "logit_bias is supported only as {}"},
      {kChat, chat + R"(,"chat_template_kwargs":1)", "chat_template_kwargs must be an object"},
      {kChat, chat + R"(,"grammar":"x")", "\\\"grammar\\\" is not supported"},
      {kCompletions, prompt + R"(,"echo":true)", "echo is supported only as false"},
      {kCompletions, prompt + R"(,"best_of":2)", "best_of is supported only as 1"},
      {kCompletions, prompt + R"(,"suffix":"x")", "suffix is supported only as"},
      {kCompletions, R"("model":"lm","prompt":"")", "the prompt has no tokens"},
      {kCompletions, R"("model":"lm","prompt":[])", "prompt must be a text, tokens"},
      {kCompletions, R"("model":"lm","prompt":[[]])", "prompt[0] must be"},
      {kCompletions, R"("model":"lm","prompt":[262])", "outside the vocabulary of 262"},
      {kCompletions, R"("model":"lm","prompt":[-1])", "outside the vocabulary of 262"},
      {kCompletions, R"("model":"lm","prompt":[9999999999])", "must hold texts or tokens"},
      {kEmbeddings, R"("model":"lm","input":"a")", "does not embed texts"},
      {kEmbeddings, input + R"(,"dimensions":17)", "dimensions must be an integer from 1 to 16"},
      {kEmbeddings, input + R"(,"encoding_format":"int8")", "encoding_format must be float or base64"},
      {kEmbeddings, R"("model":"enc","input":[1,"a"])", "input must hold texts or tokens"},
      {kEmbeddings, R"("model":"enc","input":["1","2","3","4","5","6","7","8","9"])", "the limit is 8"},
      {kEmbeddings, R"("model":"enc","input":[[300]])", "outside the vocabulary"},
      {"/v1/rerank", R"("model":"lm","query":"a","documents":["a"])", "does not score texts"},
      {"/v1/rerank", R"("model":"rank","documents":["a"])", "query is missing"},
      {"/v1/rerank", R"("query":"a","documents":[])", "documents must be an array of 1 to 8 texts"},
      {"/v1/rerank", R"("query":"a","documents":[{"x":1}])", "documents[0].text is missing"},
      {"/v1/rerank", R"("query":"a","documents":["a"],"top_n":0)", "top_n must be"},
      {"/v1/rerank", R"("query":"a","documents":["a"],"max_tokens_per_doc":9)", "max_tokens_per_doc"},
      {"/rerank",
       R"("query":"a","texts":["cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat cat"])",
       "the model reads 24"},
      {"/embed", R"("inputs":[])", "inputs must be a text, tokens"},
      {"/embed", R"("inputs":"a","prompt_name":"x")", "prompt_name"},
      {"/predict", R"("inputs":[1])", "inputs must hold a text or two"},
      {"/predict", R"("inputs":[["a"],["a","b"]])", "not both"},
      {"/api/chat", R"("model":"x","messages":[])", "there is no model", 404},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"mirostat":1})",
       "options.mirostat"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"max_tokens":1})",
       "it is num_predict"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"num_ctx":65})",
       "options.num_ctx must be an integer from 1 to 64"},
      {"/api/generate", R"("model":"lm","prompt":"a","format":"json")", "format is supported only as"},
      {"/api/generate", R"("model":"lm","prompt":"a","images":["x"])", "images is supported only as"},
      {"/api/embed", R"("model":"lm","input":"a")", "does not embed texts"},
      {"/tokenize", R"("model":"lm")", "content is missing"},
      {"/detokenize", R"("model":"lm","tokens":[262])", "integers below 260"},
      {"/v1/nothing", "", "there is nothing at", 404},
      {"/health", "", "takes GET", 405},
      {"/v1/models/x", "", "takes GET", 405},
  };
  for (const Refusal& wrong : cases) {
    const Answer answer = ask(service, wrong.path, "{" + wrong.members + "}");
    EXPECT_EQ(answer.status, wrong.status) << wrong.members;
    EXPECT_THAT(answer.body, HasSubstr(wrong.message)) << wrong.members;
    EXPECT_TRUE(answer.json().contains("error"));
  }
}

std::vector<float> floats(const Json& list) {
  std::vector<float> numbers;
  for (const Json& number : list.items()) numbers.push_back(static_cast<float>(number.as_double()));
  return numbers;
}

TEST(DialectsTest, RanksAsTheClassifierDoes) {
  Service service(test_models(), {});
  const embed::TextClassifier classifier = test_classifier();
  const std::vector<embed::TextPair> pairs = {{"a cat", "the mat"}, {"a cat", "sat on"}, {"a cat", "the"}};
  const Tensor logits = classifier.logits(pairs), scores = embed::label_probabilities(logits);
  const auto best = std::max_element(scores.data<float>(), scores.data<float>() + 3) - scores.data<float>();
  const std::string members = R"("query":"a cat",)", list = R"(["the mat","sat on",{"text":"the"}])";
  for (const char* path : {"/v1/rerank", "/v2/rerank", "/rerank"}) {
    const Json found = ask(service, path,
                           R"({"model":"rank",)" + members +
                               R"("top_n":2,"return_documents":true,"documents":)" + list + "}")
                           .json();
    ASSERT_EQ(found.at("results").size(), 2) << found;
    const Json& first = found.at("results").at(size_t{0});
    EXPECT_EQ(first.at("index").as_int(), best);
    EXPECT_EQ(static_cast<float>(first.at("relevance_score").as_double()), scores.data<float>()[best]);
    EXPECT_EQ(first.at("document").at("text").as_string(), pairs[static_cast<size_t>(best)].second);
  }
  const std::string texts = "{" + members + R"("texts":["the mat","sat on","the"])";
  const Json tei = ask(service, "/rerank", texts + "}").json(),
             raw = ask(service, "/rerank", texts + R"(,"raw_scores":true})").json();
  ASSERT_EQ(tei.size(), 3);
  EXPECT_EQ(static_cast<float>(tei.at(size_t{0}).at("score").as_double()), scores.data<float>()[best]);
  EXPECT_EQ(static_cast<float>(raw.at(size_t{0}).at("score").as_double()), logits.data<float>()[best]);
  const Json one = ask(service, "/predict", R"({"inputs":["a cat","the mat"]})").json();
  EXPECT_EQ(static_cast<float>(one.at(size_t{0}).at("score").as_double()), scores.data<float>()[0]);
  const Json batch =
      ask(service, "/predict", R"({"inputs":[["a cat","the mat"],["a cat","sat on"]],"raw_scores":true})")
          .json();
  EXPECT_EQ(static_cast<float>(batch.at(1).at(size_t{0}).at("score").as_double()), logits.data<float>()[1]);
  EXPECT_EQ(ask(service, "/predict", R"({"inputs":"a cat"})").json().at(size_t{0}).at("label").as_string(),
            "LABEL_0");
}

TEST(DialectsTest, EveryDialectEmbedsAlike) {
  Service service(test_models(), {});
  const Json openai =
      ask(service, kEmbeddings, R"({"model":"enc","input":["a cat","the mat"],"dimensions":16})").json();
  const Json tei = ask(service, "/embed", R"({"inputs":["a cat","the mat"],"normalize":false})").json();
  EXPECT_EQ(floats(tei.at(1)), floats(openai.at("data").at(1).at("embedding")));
  const Json unit = ask(service, "/embed", R"({"inputs":["a cat","the mat"]})").json();
  const Json ollama =
      ask(service, "/api/embed", R"({"model":"enc:latest","input":["a cat","the mat"],"keep_alive":"5m"})")
          .json();
  EXPECT_EQ(floats(ollama.at("embeddings").at(1)), floats(unit.at(1)));
  double squares = 0;
  for (const float x : floats(unit.at(1))) squares += double{x} * x;
  EXPECT_NEAR(squares, 1, 1e-6);
}

TEST(DialectsTest, OllamaSaysWhatChatSays) {
  Service service(test_models(), {});
  const std::string messages = R"("model":"lm","messages":[{"role":"user","content":"the cat"}])";
  const Answer chat =
      ask(service, kChat, "{" + messages + R"(,"max_tokens":9,"seed":4,"top_k":30,"stop":"e"})");
  const std::string text = choice_of(chat).at("message").at("content").as_string();
  const std::string options = R"("options":{"num_predict":9,"seed":4,"top_k":30,"stop":["e"],"num_ctx":64})";
  const Json whole = ask(service, "/api/chat", "{" + messages + R"(,"stream":false,)" + options + "}").json();
  EXPECT_EQ(whole.at("message").at("content").as_string(), text);
  EXPECT_EQ(whole.at("done_reason"), choice_of(chat).at("finish_reason"));
  EXPECT_EQ(whole.at("eval_count"), chat.json().at("usage").at("completion_tokens"));
  std::string told;
  const Answer stream = ask(service, "/api/generate", R"({"model":"lm","prompt":"the cat",)" + options + "}");
  for (size_t at = 0; at < stream.body.size();) {
    const size_t end = stream.body.find('\n', at);
    const Json line = Json::parse(stream.body.substr(at, end - at));
    told += line.at("response").as_string();
    EXPECT_EQ(line.at("done").as_bool(), end + 1 == stream.body.size());
    at = end + 1;
  }
  EXPECT_EQ(told, text);
  const Answer raw = ask(service, "/api/generate",
                         R"({"model":"lm","prompt":"the cat","raw":true,"stream":false,)" + options + "}");
  const Answer plain =
      ask(service, kCompletions,
          R"({"model":"lm","prompt":"the cat","max_tokens":9,"seed":4,"top_k":30,"stop":"e"})");
  EXPECT_EQ(raw.json().at("response"), choice_of(plain).at("text"));
  EXPECT_EQ(ask(service, "/api/tags", "", "GET").json().at("models").size(), 3);
  EXPECT_THAT(ask(service, "/api/show", R"({"model":"lm"})").body, HasSubstr("completion"));
}

TEST(DialectsTest, TokensAndFigures) {
  Service service(test_models(), {});
  const Json tokens = ask(service, "/tokenize", R"({"model":"lm","content":"the cat"})").json();
  const std::vector<int32_t> expected = test_tokenizer().encode("the cat");
  EXPECT_EQ(tokens.at("count").as_int(), std::ssize(expected));
  EXPECT_EQ(tokens.at("tokens").at(size_t{0}).as_int(), expected[0]);
  const Json text =
      ask(service, "/detokenize", R"({"model":"lm","tokens":)" + tokens.at("tokens").dump() + "}").json();
  EXPECT_EQ(text.at("content").as_string(), "the cat");
  ask(service, kEmbeddings, R"({"model":"enc","input":"abc"})");
  service.count(200);
  const std::string figures = ask(service, "/metrics", "", "GET").body;
  EXPECT_THAT(figures, HasSubstr("multihead_answers_total{status=\"2xx\"} 1\n"));
  EXPECT_THAT(figures, HasSubstr("multihead_prompt_tokens_total{model=\"enc\"} 3\n"));
  EXPECT_EQ(ask(service, "/info", "", "GET").json().at("model_id").as_string(), "lm");
}

TEST(DialectsTest, BodiesThatAreNotJsonAreRefused) {
  Service service(test_models(), {});
  for (const std::string& body :
       {std::string(), std::string("[]"), std::string("{"), std::string("{\"a\":1,\"a\":2}"),
        std::string("{\"model\":\"\xff\"}"), std::string(100'000, '['), std::string("\xef\xbb\xbf{}"),
        std::string("{} x"), std::string(1, '\0')}) {
    for (const char* path : {kChat, kCompletions, kEmbeddings}) {
      const Answer answer = ask(service, path, body);
      EXPECT_EQ(answer.status, 400);
      EXPECT_THAT(answer.body, HasSubstr("the request's body"));
    }
  }
}

}  // namespace
}  // namespace multihead::serve
