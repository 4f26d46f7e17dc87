#include "multihead/serve/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/generate/generate.h"
#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::HasSubstr;

// The data of a stream's events, without the last one, which is [DONE].
std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string data = body.substr(at + 6, end - at - 6);
    at = end + 2;
    if (data == "[DONE]") {
      EXPECT_EQ(at, body.size());
      return events;
    }
    events.push_back(Json::parse(data));
  }
  ADD_FAILURE() << "the stream has no end: " << body;
  return events;
}

TEST(ServiceTest, CompletionsAreThoseOfGenerate) {
  Service service(test_models(), {});
  const text::Tokenizer tokenizer = test_tokenizer();
  GenerateOptions options;
  options.max_new_tokens = 12, options.seed = 7, options.sampling.temperature = 0.9,
  options.sampling.top_k = 20;
  options.stop_tokens = {*tokenizer.eos_id()};
  const std::vector<int32_t> prompt = tokenizer.encode("the cat");
  const auto expected = generate(test_language_model(), {prompt, prompt}, options);
  const Answer answer = ask(service, kCompletions,
                            R"({"model":"lm","prompt":"the cat","max_tokens":12,"seed":7,"temperature":0.9,)"
                            R"("top_k":20,"n":2})");
  for (size_t i = 0; i < 2; ++i) {
    const std::string text = tokenizer.decode(expected[i], {.skip_special = true, .continued = true});
    EXPECT_EQ(choice_of(answer, i).at("text").as_string(), valid_utf8(text));
    EXPECT_EQ(choice_of(answer, i).at("finish_reason").as_string(),
              expected[i].size() == 12 ? "length" : "stop");
  }
  Json ids = Json::array();
  for (const int32_t id : prompt) ids.push_back(id);
  const Answer again =
      ask(service, kCompletions,
          R"({"model":"lm","max_tokens":12,"seed":7,"temperature":0.9,"top_k":20,"n":2,"prompt":)" +
              ids.dump() + "}");
  EXPECT_EQ(choice_of(again), choice_of(answer)) << "tokens are prompts too";
}

TEST(ServiceTest, AStreamSaysWhatTheWholeAnswerSays) {
  Service service(test_models(), {});
  const std::string members =
      R"("model":"lm","messages":[{"role":"user","content":[{"type":"text","text":"the cat"}]}],"max_tokens":20,)"
      R"("seed":3,"stop":["e","zz"],"n":2,"logprobs":true,"top_logprobs":2)";
  const Answer whole = ask(service, kChat, "{" + members + "}");
  const Answer stream =
      ask(service, kChat, "{" + members + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  const std::vector<Json> events = events_of(stream.body);
  for (size_t i = 0; i < 2; ++i) {
    std::string text, reason;
    Json tokens = Json::array();
    for (const Json& event : events) {
      for (const Json& choice : event.at("choices").items()) {
        if (choice.at("index").as_int() != static_cast<int64_t>(i)) continue;
        if (const Json* content = choice.at("delta").find("content")) text += content->as_string();
        if (!choice.at("finish_reason").is_null()) reason = choice.at("finish_reason").as_string();
        if (choice.at("logprobs").is_null()) continue;
        for (const Json& token : choice.at("logprobs").at("content").items()) tokens.push_back(token);
      }
    }
    EXPECT_EQ(text, choice_of(whole, i).at("message").at("content").as_string());
    EXPECT_EQ(text.find('e'), std::string::npos);
    EXPECT_EQ(reason, choice_of(whole, i).at("finish_reason").as_string());
    EXPECT_EQ(tokens, choice_of(whole, i).at("logprobs").at("content"));
    EXPECT_EQ(tokens.at(size_t{0}).at("top_logprobs").size(), 2);
  }
  EXPECT_EQ(events.back().at("usage"), whole.json().at("usage"));
}

// OpenAI's completions name a part of a character by its bytes.
TEST(ServiceTest, PartsOfCharactersAreDifferentAlternatives) {
  Service service(test_models(), {});
  const Answer answer =
      ask(service, "/v1/completions",
          R"({"model":"lm","prompt":"the cat","max_tokens":3,"temperature":0,"logprobs":20})");
  const Json logprobs = choice_of(answer, 0).at("logprobs");
  size_t parts = 0;
  for (const Json& top : logprobs.at("top_logprobs").items()) {
    EXPECT_EQ(top.size(), 20);
    for (const auto& [token, value] : top.members())
      parts += std::string(token).starts_with("bytes:\\x") ? 1 : 0;
  }
  EXPECT_GT(parts, 0);
}

TEST(ServiceTest, AnswersAreTheSameInWhateverCompany) {
  std::vector<std::string> bodies;
  for (int i = 0; i < 12; ++i) {
    bodies.push_back(concat(R"({"model":"lm","prompt":"the cat sat on the mat, )", std::string(i % 3, 'x'),
                            R"(","max_tokens":)", 3 + i, R"(,"seed":)", i, R"(,"logprobs":3,"n":)", 1 + i % 2,
                            "}"));
  }
  for (const char* form : {R"({"type":"json_object"})", R"({"type":"regex","regex":"(cat|mat| )*"})"}) {
    bodies.push_back(concat(R"({"model":"lm","prompt":"the cat sat on the mat","max_tokens":20,"seed":1,)",
                            R"("logprobs":2,"presence_penalty":0.5,"response_format":)", form, "}"));
  }
  std::vector<Json> alone;
  {
    Service service(test_models(), {.parallel = 1, .cache_bytes = 0});
    for (const std::string& body : bodies)
      alone.push_back(ask(service, kCompletions, body).json().at("choices"));
  }
  const int threads = num_threads();
  for (const int64_t chunk : {3, 512}) {
    set_num_threads(chunk == 3 ? 3 : threads);
    Service service(test_models(), {.parallel = 5, .prompt_chunk = chunk});
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<Reply>> replies;
      for (const std::string& body : bodies) {
        service.handle(test_request(kCompletions, body))->cancel();
        replies.push_back(service.handle(test_request(kCompletions, body)));
      }
      for (size_t i = 0; i < bodies.size(); ++i) {
        EXPECT_EQ(answer_of(*replies[i]).json().at("choices"), alone[i]) << chunk << ": " << bodies[i];
      }
    }
    while (service.active() > 0) std::this_thread::yield();
  }
  set_num_threads(threads);
}

TEST(ServiceTest, EmbeddingsAreThoseOfTheEncoder) {
  Service service(test_models(), {});
  const std::vector<std::string> texts = {"the cat", "", "the mat sat"};
  const embed::SentenceEncoder encoder = test_sentence_encoder();
  const std::vector<float> expected = encoder.encode(texts).to_vector<float>();
  const Json data =
      ask(service, kEmbeddings, R"({"model":"enc","input":["the cat","","the mat sat"]})").json();
  const Json packed =
      ask(service, kEmbeddings, R"({"model":"enc","input":["the cat"],"encoding_format":"base64"})").json();
  EXPECT_EQ(packed.at("data").at(size_t{0}).at("embedding").as_string().size(), 88) << "64 bytes";
  for (size_t row = 0; row < 3; ++row) {
    const auto numbers = data.at("data").at(row).at("embedding").items();
    ASSERT_EQ(numbers.size(), 16);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(static_cast<float>(numbers[i].as_double()), expected[row * 16 + i]);
    }
  }
  Json ids = Json::array();
  for (const int32_t id : encoder.tokens("the mat sat", 0)) ids.push_back(id);
  const Json of_tokens = ask(service, kEmbeddings, R"({"model":"enc","input":)" + ids.dump() + "}").json();
  EXPECT_EQ(of_tokens.at("data").at(size_t{0}).at("embedding"), data.at("data").at(2).at("embedding"));
  const Json cut = ask(service, kEmbeddings, R"({"model":"enc","input":"the cat","dimensions":3})").json();
  double squares = 0;
  for (const Json& number : cut.at("data").at(size_t{0}).at("embedding").items())
    squares += number.as_double() * number.as_double();
  EXPECT_NEAR(squares, 1, 1e-6);
}

TEST(ServiceTest, LongTextsAreRefusedOrCutAsTheCallerSays) {
  Service service(test_models(), {});
  const std::string input = R"({"model":"enc","input":["a",")" + std::string(400, 'x') + "\"]";
  const Answer refused = ask(service, kEmbeddings, input + "}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("input 1 has 400 tokens, the model reads 24"));
  const Answer cut = ask(service, kEmbeddings, input + R"(,"truncate":true})");
  EXPECT_EQ(cut.json().at("usage").at("prompt_tokens").as_int(), 25) << cut.body;
  const Answer prompt =
      ask(service, kCompletions, R"({"model":"lm","prompt":")" + std::string(60, 'x') + "\"}");
  EXPECT_EQ(prompt.status, 400);
  EXPECT_THAT(prompt.body, HasSubstr("the prompt has 60 tokens and 16 new ones; the context holds 64"));
  EXPECT_THAT(prompt.body, HasSubstr("context_length_exceeded"));
}

TEST(ServiceTest, MutatedRequestsAreAnsweredOrRefused) {
  Service service(test_models(), {});
  const std::pair<const char*, std::string> seeds[] = {
      {kChat,
       R"({"model":"lm","messages":[{"role":"user","content":"a"}],"max_tokens":2,"temperature":1,"n":1})"},
      {kCompletions,
       R"({"model":"lm","prompt":["a","b"],"max_tokens":1,"logprobs":1,"stop":"x","stream":true})"},
      {kEmbeddings, R"({"model":"enc","input":["a",[1,2]],"dimensions":2,"encoding_format":"base64"})"}};
  std::mt19937 random(2);
  int answered = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto [path, body] = seeds[random() % 3];
    for (unsigned n = random() % 4; n > 0; --n) {
      const size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = "0123456789{}[]\",:-e"[random() % 19];
          break;
        case 1:
          body[at] = static_cast<char>(random());
          break;
        case 2:
          body.erase(at, 1 + random() % 3);
          break;
        default:
          body.insert(at, body.substr(random() % body.size(), random() % 12));
      }
    }
    const int status = ask(service, path, body).status;
    EXPECT_TRUE(status == 200 || status == 400 || status == 404) << status << ": " << body;
    ++(status == 200 ? answered : refused);
  }
  EXPECT_GT(answered, 500);
  EXPECT_GT(refused, 500);
}

TEST(ServiceTest, KeysAndNamesAreChecked) {
  Service service(test_models(), {.api_keys = {"secret", "other"}, .hosts = {"Box.example.org"}});
  const auto status = [&](const std::string& key, const std::string& host, const std::string& origin,
                          const std::string& path = "/v1/models") {
    HttpRequest request = test_request(path, "", "GET");
    request.headers["host"] = host;
    if (!key.empty()) request.headers["authorization"] = key;
    if (!origin.empty()) request.headers["origin"] = origin;
    return answer_of(*service.handle(request)).status;
  };
  EXPECT_EQ(status("Bearer secret", "localhost", ""), 200);
  EXPECT_EQ(status("Bearer other", "127.0.0.1:80", ""), 200);
  EXPECT_EQ(status("BEARER other", "127.0.0.1:80", ""), 200);
  EXPECT_EQ(status("Bearer secret", "[::1]:80", ""), 200);
  EXPECT_EQ(status("Bearer secret", "box.example.org:80", "http://box.example.org"), 200);
  EXPECT_EQ(status("Bearer secret", "LocalHost:80", ""), 200);
  EXPECT_EQ(status("Bearer secret", "BOX.example.ORG.", "http://box.Example.org"), 200);
  EXPECT_EQ(status("", "localhost", ""), 401);
  EXPECT_EQ(status("Bearer secre", "localhost", ""), 401);
  EXPECT_EQ(status("Bearer ", "localhost", ""), 401);
  EXPECT_EQ(status("secret", "localhost", ""), 401);
  EXPECT_EQ(status("", "localhost", "", "/nothing"), 401) << "paths are not told to strangers";
  EXPECT_EQ(status("", "localhost", "", "/health"), 200);
  EXPECT_EQ(status("Bearer secret", "evil.example.org", ""), 403);
  EXPECT_EQ(status("Bearer secret", "127.0.0.1.evil.org", ""), 403);
  EXPECT_EQ(status("Bearer secret", "localhost", "http://evil.example.org"), 403);
  EXPECT_EQ(status("Bearer secret", "localhost", "null"), 403);
  EXPECT_EQ(status("Bearer secret", "localhost", "http://203.0.113.5"), 403);
  EXPECT_EQ(status("Bearer secret", "192.168.0.7:80", "http://192.168.0.7:3000"), 200);
  EXPECT_EQ(status("Bearer secret", "127.0.0.1:80", "http://127.0.0.2:3000"), 200);
  EXPECT_EQ(status("Bearer secret", "localhost:80", "http://[::1]:3000"), 200);
}

TEST(ServiceTest, AnAddressToListenAtIsNoName) {
  Service service(test_models(), {.hosts = {"::", "::1", ""}});
  HttpRequest request = test_request("/v1/models", "", "GET");
  request.headers["host"] = "[::1]:80";
  EXPECT_EQ(answer_of(*service.handle(request)).status, 200);
  for (const char* origin : {"null", "file://", "http://:80"}) {
    request.headers["origin"] = origin;
    EXPECT_EQ(answer_of(*service.handle(request)).status, 403) << origin;
  }
  request.headers.erase("origin");
  request.headers["host"] = ":80";
  EXPECT_EQ(answer_of(*service.handle(request)).status, 403);
}

TEST(ServiceTest, MoreThanTheQueueHoldsIsTurnedAway) {
  Service service(test_models(), {.parallel = 1, .max_queue = 2});
  std::vector<std::shared_ptr<Reply>> replies;
  for (int i = 0; i < 8; ++i) {
    replies.push_back(service.handle(
        test_request(kCompletions, R"({"model":"lm","prompt":"the cat","max_tokens":40,"seed":1,"n":8})")));
  }
  int turned_away = 0;
  for (const auto& reply : replies) {
    const Answer answer = answer_of(*reply);
    turned_away += answer.status == 429;
    if (answer.status != 429) continue;
    EXPECT_THAT(answer.headers, testing::Contains(std::pair<std::string, std::string>("Retry-After", "1")));
  }
  EXPECT_GE(turned_away, 3);
  EXPECT_LE(turned_away, 5);
}

TEST(ServiceTest, TimeEnds) {
  Service service(test_models(), {.timeout = 1e-9});
  const Answer late = ask(service, kCompletions, R"({"model":"lm","prompt":"a","max_tokens":40})");
  EXPECT_EQ(late.status, 504);
  EXPECT_THAT(late.body, HasSubstr("--timeout"));
}

TEST(ServiceTest, ACancelledRequestLeavesNothing) {
  Service service(test_models(), {});
  for (int i = 0; i < 20; ++i) {
    const auto reply = service.handle(test_request(
        kCompletions, R"({"model":"lm","prompt":"the cat","max_tokens":50,"n":20,"stream":true,"seed":1})"));
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    reply->cancel();
    while (service.active() > 0) std::this_thread::yield();
  }
}

TEST(ServiceTest, AClosedServiceSaysSo) {
  Service service(test_models(), {});
  service.close();
  EXPECT_EQ(ask(service, kEmbeddings, R"({"model":"enc","input":"a"})").status, 503);
}

TEST(ServiceTest, RefusesBadOptions) {
  EXPECT_THROW(Service({}, {}), ValueError);
  EXPECT_THROW(Service(test_models(), {.context = 65}), ValueError);
  EXPECT_THROW(Service(test_models(), {.parallel = 0}), ValueError);
  for (const int64_t most : {int64_t{0}, std::numeric_limits<int64_t>::max()})
    EXPECT_THROW(Service(test_models(), {.max_queue = most}), ValueError);
  for (const char* host : {"box:80", "box:80:90", "a b", "box/v1", "*.example.org"})
    EXPECT_THROW(Service(test_models(), {.hosts = {host}}), ValueError) << host;
  for (const char* key : {"", " key", "key\t", "k\ney"})
    EXPECT_THROW(Service(test_models(), {.api_keys = {"key", key}}), ValueError) << key;
  Service(test_models(), {.api_keys = {"a key"}, .hosts = {"[::1]", "box"}});
  std::vector<Model> twice = test_models();
  twice[1].name = "lm";
  EXPECT_THROW(Service(std::move(twice), {}), ValueError);
}

}  // namespace
}  // namespace multihead::serve
