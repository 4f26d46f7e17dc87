// Each dialect answers and refuses, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "multihead/generate/generate.h"
#include "multihead/serve/service-inl.h"
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
      {kChat, chat + R"(,"tools":[{}])", "tools[0].type is missing"},
      {kChat, chat + R"(,"tools":[{"type":"function","function":{"name":"f","x":1}}])",
       "tools[0].function.x"},
      {kChat, chat + R"(,"tools":[{"type":"function","function":{"name":""}}])",
       "tools[0].function.name must be a text that is not empty"},
      {kChat,
       chat +
           R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
       "two functions"},
      {kChat,
       chat +
           R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
       "not among the tools"},
      {kChat,
       chat +
           R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"uniqueItems":true}}}],"tool_choice":"required")",
       "\\\"uniqueItems\\\" at \\\"#\\\" is not supported"},
      {kChat, chat + R"(,"tool_choice":"required")", "tool_choice is supported only as"},
      {kChat, chat + R"(,"response_format":{"type":"xml"})", "response_format.type must be"},
      {kChat, chat + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "schema is missing"},
      {kChat,
       chat +
           R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"uniqueItems":true}}}}})",
       "\\\"uniqueItems\\\" at \\\"#/properties/a\\\" is not supported"},
      {kChat, chat + R"x(,"response_format":{"type":"regex","regex":"(?=a)"})x", "look-around"},
      {kChat, chat + R"(,"response_format":{"type":"grammar","grammar":"a ::= b"})", "there is no rule"},
      {kChat, chat + R"(,"frequency_penalty":2.5)", "frequency_penalty must be a number from -2 to 2"},
      {kChat, chat + R"(,"logit_bias":{"x":2})", "logit_bias must give tokens below 262"},
      {kChat, chat + R"(,"logit_bias":{"1":101})", "logit_bias must give"},
      {kChat, chat + R"(,"logit_bias":{"5":100,"05":-100})", "logit_bias names the token 5 twice"},
      {kChat, chat + R"(,"chat_template_kwargs":1)", "chat_template_kwargs must be an object"},
      {kChat, chat + R"(,"chat_template_kwargs":{"messages":[]})",
       "chat_template_kwargs cannot set messages"},
      {kChat,
       R"("model":"lm","messages":[{"role":"assistant","content":"a","function_call":{"name":"f","arguments":""}}])",
       "messages[0].function_call must be null"},
      {kChat, chat + R"(,"grammar":"x")", "\\\"grammar\\\" is not supported"},
      {kCompletions, prompt + R"(,"max_tokens":0)", "max_tokens must be"},
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
      {kEmbeddings, input + R"(,"task":"title")", "has no task \\\"title\\\"; its tasks are document, query"},
      {kEmbeddings, input + R"(,"task":1)", "task must be"},
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
      {"/predict", R"("inputs":"a","parameters":{"top_k":1})", "parameters is supported only as {}"},
      {"/api/chat", R"("model":"x","messages":[])", "there is no model", 404},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"mirostat":1})",
       "options.mirostat"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"max_tokens":1})",
       "\\\"options.max_tokens\\\" is not supported"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"num_predict":-3})",
       "options.num_predict must be"},
      {"/api/chat",
       R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"repeat_penalty":0})",
       "options.repeat_penalty must be"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"num_ctx":65})",
       "options.num_ctx must be an integer from 1 to 64"},
      {"/api/chat", R"("model":"lm","messages":[{"role":"user","content":"a"}],"options":{"num_ctx":1})",
       "the context holds 1"},
      {"/api/embed", R"("model":"enc","input":"a","options":{"temperature":1})", "\\\"options.temperature"},
      {"/api/generate", R"("model":"lm","prompt":"a","format":"xml")",
       "format must be json or a JSON schema"},
      {"/api/generate", R"("model":"lm","prompt":"a","images":["x"])", "images is supported only as"},
      {"/api/embed", R"("model":"lm","input":"a")", "does not embed texts"},
      {"/v1/responses", R"("model":"lm")", "input is missing"},
      {"/v1/responses", R"("model":"lm","input":"a","previous_response_id":"x")", "previous_response_id"},
      {"/v1/responses", R"("model":"lm","input":[{"type":"image"}])", "input[0].type must be"},
      {"/v1/responses",
       R"("model":"lm","input":"a","text":{"format":{"type":"json_schema","schema":{"uniqueItems":true}}})",
       "is not supported"},
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

// The description lists every path, and only members that are read. That all of those are described is asked
// where they are read, by Fields::find().
TEST(DialectsTest, TheDescriptionIsWhatIsAnswered) {
  Service service(test_models(), {});
  const Json paths = ask(service, "/openapi.json", "", "GET").json().at("paths");
  const std::map<std::string, std::string> values = {{"input", R"("a")"},
                                                     {"inputs", R"("a")"},
                                                     {"prompt", R"("a")"},
                                                     {"query", R"("a")"},
                                                     {"documents", R"(["a"])"},
                                                     {"tokens", "[1]"},
                                                     {"messages", R"([{"role":"user","content":"a"}])"}};
  int members = 0;
  for (const Route& route : routes()) {
    std::string path = route.path;
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{model}");
    const Json& described = paths.at(path).at(route.method == std::string("POST") ? "post" : "get");
    const Json* content = described.find("requestBody");
    ASSERT_EQ(content != nullptr, route.method == std::string("POST")) << path;
    if (content == nullptr) continue;
    const Json& schema = content->at("content").at("application/json").at("schema");
    const auto refusal_of = [&](const std::string& member) {
      const bool embeds = path.find("embed") != std::string::npos,
                 ranks = path.find("rank") != std::string::npos;
      Json body = Json::object({{"model", embeds ? "enc" : ranks || path == "/predict" ? "rank" : "lm"}});
      for (const Json& name : schema.at("required").items()) {
        if (const auto value = values.find(name.as_string()); value != values.end())
          body[value->first] = Json::parse(value->second);
      }
      if (path == "/rerank") {
        const bool is_tei = member != "documents" && member != "top_n" && member != "return_documents";
        body[is_tei ? "texts" : "documents"] = Json::parse(R"(["a"])");
      }
      if (path == "/tokenize") body["content"] = "a";
      body[member] = Json::parse(R"({"odd":[1]})");
      return ask(service, path, body.dump()).body;
    };
    for (const auto& [name, type] : schema.at("properties").members()) {
      const std::string member(name.view());
      EXPECT_THAT(refusal_of(member), testing::Not(HasSubstr(member + "\\\" is not supported"))) << path;
      ++members;
    }
    EXPECT_THAT(refusal_of("unheard"), HasSubstr("unheard\\\" is not supported")) << path;
  }
  EXPECT_GT(members, 120);
}

std::vector<float> floats(const Json& list) {
  std::vector<float> numbers;
  for (const Json& number : list.items()) numbers.push_back(static_cast<float>(number.as_double()));
  return numbers;
}

TEST(DialectsTest, RanksAsTheClassifierDoes) {
  std::vector<Model> models = test_models();
  models.insert(models.begin(), {.name = "three", .any = test_classifier(3)});  // which does not rank
  Service service(std::move(models), {});
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
  const Json one = ask(service, "/predict", R"({"model":"rank","inputs":["a cat","the mat"]})").json();
  EXPECT_EQ(static_cast<float>(one.at(size_t{0}).at("score").as_double()), scores.data<float>()[0]);
  const Json batch =
      ask(service, "/predict",
          R"({"model":"rank","inputs":[["a cat","the mat"],["a cat","sat on"]],"raw_scores":true})")
          .json();
  EXPECT_EQ(static_cast<float>(batch.at(1).at(size_t{0}).at("score").as_double()), logits.data<float>()[1]);
  EXPECT_EQ(ask(service, "/predict", R"({"model":"rank","inputs":"a cat","parameters":{}})")
                .json()
                .at(size_t{0})
                .at("label")
                .as_string(),
            "LABEL_0");
}

TEST(DialectsTest, EveryDialectEmbedsAlike) {
  Service service(test_models(), {});
  const Json openai = ask(service, kEmbeddings, R"({"model":"enc","input":["a cat","the mat"]})").json();
  const Json tei = ask(service, "/embed", R"({"inputs":["a cat","the mat"],"normalize":false})").json();
  EXPECT_EQ(floats(tei.at(1)), floats(openai.at("data").at(1).at("embedding")));
  const Json unit = ask(service, "/embed", R"({"inputs":["a cat","the mat"]})").json();
  const Json ollama =
      ask(service, "/api/embed", R"({"model":"enc:latest","input":["a cat","the mat"],"keep_alive":"5m"})")
          .json();
  EXPECT_EQ(floats(ollama.at("embeddings").at(1)), floats(unit.at(1)));
  const Json older = ask(service, "/api/embeddings", R"({"model":"enc","prompt":"the mat"})").json();
  EXPECT_EQ(floats(older.at("embedding")), floats(openai.at("data").at(1).at("embedding")));
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
  EXPECT_GT(whole.at("eval_duration").as_int(), 0);  // clients divide by it
  EXPECT_EQ(whole.at("prompt_eval_duration").as_int() + whole.at("eval_duration").as_int(),
            whole.at("total_duration").as_int());
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
  EXPECT_THAT(ask(service, "/api/show", R"({"model":"lm"})").body,
              HasSubstr(R"("capabilities":["completion","tools"])"));
}

// Ollama's programs ask for a model to be loaded, and langchain's sends every option, most of them null.
TEST(DialectsTest, OllamasOtherRequests) {
  Service service(test_models(), {});
  for (const char* prompt : {"", R"(,"prompt":"","keep_alive":"5m")"}) {
    const Json loaded = ask(service, "/api/generate", concat(R"({"model":"lm")", prompt, "}")).json();
    EXPECT_EQ(loaded.at("response").as_string(), "");
    EXPECT_EQ(loaded.at("done_reason").as_string(), "load");
  }
  for (const char* messages : {"", R"(,"messages":null)", R"(,"messages":[])"}) {
    const Json loaded = ask(service, "/api/chat", concat(R"({"model":"lm")", messages, "}")).json();
    EXPECT_EQ(loaded.at("message").at("content").as_string(), "");
  }
  const std::string options = R"("options":{"mirostat":null,"num_ctx":null,"num_thread":2})";
  EXPECT_EQ(ask(service, "/api/embed", R"({"model":"enc","input":["a"],)" + options + "}").status, 200);
  EXPECT_EQ(ask(service, "/api/show", R"({"model":"enc"})").json().at("capabilities").dump(),
            R"(["embedding"])");
}

TEST(DialectsTest, OllamaAddsLatestOnlyToWhatLacksIt) {
  std::vector<Model> models = test_models();
  models[0].name = "a", models[1].name = "a:latest";
  const std::string kinds[] = {models[0].kind(), models[1].kind()};
  Service service(std::move(models), {});
  const auto family = [&](const char* name) {
    const Json shown = ask(service, "/api/show", concat(R"({"model":")", name, "\"}")).json();
    return shown.at("details").at("family").as_string();
  };
  EXPECT_EQ(family("a"), kinds[0]);
  EXPECT_EQ(family("a:latest"), kinds[1]);
}

// The data of a stream's events, without the last one.
std::vector<Json> events_of(const Answer& answer) {
  std::vector<Json> events;
  for (size_t at = answer.body.find("data: "); at != std::string::npos;
       at = answer.body.find("data: ", at + 1)) {
    const std::string text = answer.body.substr(at + 6, answer.body.find('\n', at) - at - 6);
    if (text != "[DONE]") events.push_back(Json::parse(text));
  }
  return events;
}

TEST(DialectsTest, AnswersFitTheirSchemaInEveryDialect) {
  Service service(test_models(), {});
  const std::string messages = R"({"model":"lm","messages":[{"role":"user","content":"a"}],)";
  const std::string schema =
      R"({"type":"object","properties":{"a":{"enum":["x","y"]},"n":{"type":"integer","minimum":10,"maximum":99}},"required":["a","n"],"additionalProperties":false})";
  const auto check = [&](const std::string& text) {
    const Json value = Json::parse(text);
    EXPECT_EQ(value.size(), 2) << text;
    EXPECT_GE(value.at("n").as_int(), 10);
  };
  for (int seed = 0; seed < 4; ++seed) {
    const std::string same = concat(R"("seed":)", seed, ",");
    const Answer chat = ask(
        service, kChat,
        messages + same +
            R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)" +
            schema + "}}}");
    ASSERT_EQ(chat.status, 200) << chat.body;
    check(choice_of(chat).at("message").at("content").as_string());
    EXPECT_EQ(choice_of(chat).at("finish_reason").as_string(), "stop");
    const Answer ollama =
        ask(service, "/api/chat",
            messages + concat(R"("options":{"seed":)", seed, R"(},"stream":false,"format":)") + schema + "}");
    check(ollama.json().at("message").at("content").as_string());
    const Answer plain =
        ask(service, kCompletions,
            R"({"model":"lm","prompt":"a",)" + same +
                R"("max_tokens":40,"response_format":{"type":"regex","regex":"(cat|mat){2}"}})");
    EXPECT_EQ(choice_of(plain).at("text").as_string().size(), 6);
    const Answer response =
        ask(service, "/v1/responses",
            R"({"model":"lm","input":"a",)" + same +
                R"("text":{"format":{"type":"json_schema","name":"x","schema":)" + schema + "}}}");
    check(response.json().at("output").at(size_t{0}).at("content").at(size_t{0}).at("text").as_string());
  }
}

TEST(DialectsTest, CallsOfToolsInEveryDialect) {
  Service service(test_models(), {});
  const std::string function =
      R"("name":"look_up","parameters":{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":9}},"required":["n"],"additionalProperties":false})";
  const std::string body =
      R"({"model":"lm","messages":[{"role":"user","content":"a"}],"temperature":0,"tools":[{"type":"function","function":{)" +
      function + "}}]";
  // The context of this model is short: the tools are not told again.
  const Answer whole = ask(service, kChat, body + R"(,"tool_choice":"required"})");
  EXPECT_EQ(whole.status, 400);
  EXPECT_THAT(whole.body, HasSubstr("context_length_exceeded"));
  std::vector<Model> models;
  models::LanguageModelConfig config;
  config.vocab_size = 262, config.context = 1024, config.num_layers = 1, config.num_heads = 2,
  config.embed_dim = 16;
  config.init_std = 0.3;
  Rng rng(3);
  models.push_back({.name = "lm", .any = Writer{{models::LanguageModel(config, rng), test_tokenizer()}, {}}});
  Service long_service(std::move(models), {});
  const Answer called = ask(long_service, kChat, body + R"(,"tool_choice":"required"})");
  ASSERT_EQ(called.status, 200) << called.body;
  EXPECT_EQ(choice_of(called).at("finish_reason").as_string(), "tool_calls");
  const Json call = choice_of(called).at("message").at("tool_calls").at(size_t{0}).at("function");
  EXPECT_EQ(call.at("name").as_string(), "look_up");
  const std::string arguments = call.at("arguments").as_string();
  EXPECT_GE(Json::parse(arguments).at("n").as_int(), 0);
  EXPECT_TRUE(choice_of(called).at("message").at("content").is_null());
  std::string streamed, name;
  for (const Json& event :
       events_of(ask(long_service, kChat, body + R"(,"tool_choice":"required","stream":true})"))) {
    const Json* calls = event.at("choices").at(size_t{0}).at("delta").find("tool_calls");
    if (calls == nullptr) continue;
    const Json& part = calls->at(size_t{0}).at("function");
    streamed += part.at("arguments").as_string();
    if (part.contains("name")) name += part.at("name").as_string();
  }
  EXPECT_EQ(streamed, arguments);
  EXPECT_EQ(name, "look_up");
  const Json flat =
      ask(long_service, "/v1/responses",
          R"({"model":"lm","input":"a","temperature":0,"tool_choice":"required","tools":[{"type":"function",)" +
              function + "}]}")
          .json();
  EXPECT_EQ(flat.at("output").at(size_t{0}).at("arguments").as_string(), arguments);
  const Json ollama =
      ask(long_service, "/api/chat",
          R"({"model":"lm","messages":[{"role":"user","content":"a"}],"stream":false,"options":{"temperature":0},"tool_choice":"required","tools":[{"type":"function","function":{)" +
              function + "}}]}")
          .json();
  EXPECT_EQ(ollama.at("message").at("tool_calls").at(size_t{0}).at("function").at("arguments"),
            Json::parse(arguments));
  // A format binds what is no call; a call that is required has none.
  const std::string format = R"(,"response_format":{"type":"json_object","value":{"const":"yes"}})";
  const Answer formatted = ask(long_service, kChat, body + format + R"(,"max_tokens":60})");
  ASSERT_EQ(formatted.status, 200) << formatted.body;
  const Json message = choice_of(formatted).at("message");
  EXPECT_TRUE(message.contains("tool_calls") || message.at("content") == Json("\"yes\"")) << formatted.body;
  EXPECT_EQ(choice_of(ask(long_service, kChat, body + format + R"(,"tool_choice":"required"})"))
                .at("message")
                .at("tool_calls")
                .at(size_t{0})
                .at("function")
                .at("arguments")
                .as_string(),
            arguments);
  EXPECT_THAT(ask(long_service, kChat, body + R"(,"response_format":{"type":"regex","regex":"a"}})").body,
              HasSubstr("tools go with a response_format of JSON alone"));
  const Answer next = ask(
      long_service, kChat,
      R"({"model":"lm","max_tokens":3,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]})");
  EXPECT_EQ(next.status, 200) << next.body;
}

TEST(DialectsTest, ResponsesStreamWhatTheySay) {
  Service service(test_models(), {});
  const std::string body =
      R"({"model":"lm","input":[{"role":"user","content":[{"type":"input_text","text":"the cat"}]}],"temperature":0,"max_output_tokens":7)";
  const Json whole = ask(service, "/v1/responses", body + "}").json();
  const Json chat =
      ask(service, kChat,
          R"({"model":"lm","messages":[{"role":"user","content":"the cat"}],"temperature":0,"max_tokens":7})")
          .json();
  const std::string text =
      whole.at("output").at(size_t{0}).at("content").at(size_t{0}).at("text").as_string();
  EXPECT_EQ(Json(text), chat.at("choices").at(size_t{0}).at("message").at("content"));
  EXPECT_EQ(whole.at("max_output_tokens"), Json(7));
  const std::vector<Json> events = events_of(ask(service, "/v1/responses", body + R"(,"stream":true})"));
  std::string streamed;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].at("sequence_number").as_int(), static_cast<int64_t>(i));
    if (events[i].at("type") == Json("response.output_text.delta"))
      streamed += events[i].at("delta").as_string();
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(events.front().at("type").as_string(), "response.created");
  EXPECT_EQ(events.back().at("response").at("usage").at("output_tokens"),
            chat.at("usage").at("completion_tokens"));
}

TEST(DialectsTest, EchoGivesThePromptAndItsLogprobs) {
  Service service(test_models(), {});
  const Answer answer = ask(service, kCompletions,
                            R"({"model":"lm","prompt":"the cat","echo":true,"max_tokens":0,"logprobs":2})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(choice_of(answer).at("text").as_string(), "the cat");
  const Json logprobs = choice_of(answer).at("logprobs");
  const std::vector<int32_t> ids = test_tokenizer().encode("the cat");
  const auto expected = prompt_logprobs(test_language_model(), {ids}, 2)[0];
  ASSERT_EQ(logprobs.at("token_logprobs").size(), ids.size());
  EXPECT_TRUE(logprobs.at("token_logprobs").at(size_t{0}).is_null());
  EXPECT_EQ(static_cast<float>(logprobs.at("token_logprobs").at(1).as_double()), expected[0].chosen.logprob);
  const Answer more =
      ask(service, kCompletions,
          R"({"model":"lm","prompt":"the cat","echo":true,"max_tokens":2,"logprobs":0,"temperature":0})");
  EXPECT_TRUE(choice_of(more).at("text").as_string().starts_with("the cat"));
  EXPECT_EQ(choice_of(more).at("logprobs").at("tokens").size(), ids.size() + 2);
  const Answer biased =
      ask(service, kCompletions,
          concat(R"({"model":"lm","prompt":"the cat","max_tokens":2,"logit_bias":{")", ids[0], R"(":100}})"));
  EXPECT_EQ(choice_of(biased).at("text").as_string(),
            test_tokenizer().decode(std::vector<int32_t>{ids[0], ids[0]}));
}

TEST(DialectsTest, OffsetsCountWhatIsShown) {
  Service service(test_models(), {});
  const auto byte = [](const char* text) {
    const text::Tokenizer tokenizer = test_tokenizer();
    int32_t id = 0;
    while (tokenizer.decode(std::vector<int32_t>{id}) != text) ++id;
    return id;
  };
  // A stray byte, the two bytes of a character, the first of one that does not go on, a letter.
  std::string ids;
  for (const char* one : {"\x9c", "\xc3", "\xa9", "\xe2", "a"})
    ids += concat(ids.empty() ? "" : ",", byte(one));
  const Answer answer =
      ask(service, kCompletions,
          concat(R"({"model":"lm","prompt":[)", ids, R"(],"echo":true,"max_tokens":0,"logprobs":0})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(choice_of(answer).at("text").as_string(), "\ufffd\u00e9\ufffda");
  EXPECT_EQ(choice_of(answer).at("logprobs").at("text_offset").dump(), "[0,1,2,2,3]");
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
  std::string many = R"({"model":"lm","tokens":[0)";
  for (int i = 0; i < 300'000; ++i) many += ",0";
  EXPECT_EQ(ask(service, "/detokenize", many + "]}").status, 413);
  ask(service, kEmbeddings, R"({"model":"enc","input":"abc"})");
  service.count(200);
  const std::string figures = ask(service, "/metrics", "", "GET").body;
  EXPECT_THAT(figures, HasSubstr("multihead_answers_total{status=\"2xx\"} 1\n"));
  EXPECT_THAT(figures, HasSubstr("multihead_prompt_tokens_total{model=\"enc\"} 3\n"));
  const Json info = ask(service, "/info", "", "GET").json();
  EXPECT_EQ(info.at("model_id").as_string(), "enc");
  EXPECT_TRUE(info.at("model_type").contains("embedding"));
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
