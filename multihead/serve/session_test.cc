#include "multihead/serve/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct TestConnection {
  explicit TestConnection(Service& service, SessionOptions given = {}) : options(std::move(given)) {
    options.log = [this](const AccessLine& line) { lines.push_back(line); };
    session.emplace([&service](const HttpRequest& request) { return service.handle(request); }, options,
                    "peer", [this](std::string_view bytes) { sent += bytes; }, [this] { is_closed = true; });
  }
  // As a loop does: what is not taken is offered again.
  void send(const std::string& bytes) {
    input += bytes;
    input.erase(0, session->receive(input));
  }
  void run_until_lines(size_t count) {
    while (lines.size() < count) {
      session->wake();
      input.erase(0, session->receive(input));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  SessionOptions options;
  std::string input, sent;
  bool is_closed = false;
  std::vector<AccessLine> lines;
  std::optional<HttpSession> session;
};

std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
const std::string kGet = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
const std::string kHello = R"({"model":"lm","prompt":"the cat","max_tokens":5,"seed":1)";

TEST(HttpSessionTest, AnswersRequestsOneAfterTheOther) {
  Service service(test_models(), {});
  TestConnection one(service);
  one.send(kGet + post("/v1/completions", kHello + "}") + kGet);
  one.run_until_lines(3);
  EXPECT_THAT(one.sent, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(one.lines[1].path, "/v1/completions");
  EXPECT_EQ(one.lines[1].facts.new_tokens, 5);
  EXPECT_EQ(one.lines[1].facts.model, "lm");
  EXPECT_TRUE(one.input.empty());
  EXPECT_FALSE(one.is_closed);
}

// A second may pass between two answers.
std::string without_dates(const std::string& answers) {
  return std::regex_replace(answers, std::regex("Date: [^\r]*\r\n"), "");
}

// The head of the answer to GET, and no body, which would be read as the next answer.
TEST(HttpSessionTest, HeadIsGetWithoutABody) {
  Service service(test_models(), {});
  TestConnection get(service), head(service);
  const auto path = [](const char* method, const char* path) {
    return concat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  get.send(kGet);
  get.run_until_lines(1);
  head.send(path("HEAD", "/health"));
  head.run_until_lines(1);
  EXPECT_EQ(without_dates(head.sent), without_dates(get.sent.substr(0, get.sent.find("\r\n\r\n") + 4)));
  EXPECT_EQ(head.lines[0].bytes, 0);
  head.sent.clear();
  head.send(path("HEAD", "/v1/embeddings") + path("HEAD", "/nothing") + kGet);
  head.run_until_lines(4);
  EXPECT_THAT(head.sent, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(head.sent, HasSubstr("\r\nAllow: POST\r\n"));
  EXPECT_THAT(head.sent, HasSubstr("\r\n\r\nHTTP/1.1 404"));
  EXPECT_TRUE(without_dates(head.sent).ends_with("\r\n\r\n" + without_dates(get.sent))) << head.sent;
  get.sent.clear();
  get.send(path("DELETE", "/health"));
  get.run_until_lines(2);
  EXPECT_THAT(get.sent, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

TEST(HttpSessionTest, StreamsInChunksOrToTheEnd) {
  Service service(test_models(), {});
  TestConnection chunks(service);
  chunks.send(post("/v1/completions", kHello + R"(,"stream":true})"));
  chunks.run_until_lines(1);
  EXPECT_THAT(chunks.sent, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(chunks.sent, HasSubstr("data: [DONE]\n\n\r\n0\r\n\r\n"));
  EXPECT_FALSE(chunks.is_closed);
  TestConnection old(service);
  const std::string body = kHello + R"(,"stream":true})";
  old.send("POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  old.run_until_lines(1);
  EXPECT_THAT(old.sent, HasSubstr("Connection: close"));
  EXPECT_TRUE(old.sent.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(old.is_closed);
}

TEST(HttpSessionTest, WhatIsNotHttpIsRefusedAndEnds) {
  Service service(test_models(), {});
  TestConnection one(service);
  one.send("HELO example.org\r\n\r\n");
  EXPECT_THAT(one.sent, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_TRUE(one.is_closed);
  one.send(kGet);
  EXPECT_EQ(one.lines.size(), 1) << "nothing more is read";
}

TEST(HttpSessionTest, SlowClientsAreEnded) {
  Service service(test_models(), {});
  const auto later = HttpSession::Clock::now() + std::chrono::seconds(30);
  TestConnection head(service), body(service), idle(service), silent(service);
  idle.send(kGet);
  idle.run_until_lines(1);
  idle.sent.clear();
  head.send("GET / HTTP/1.1\r\nHo");
  body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{");
  for (TestConnection* one : {&head, &body, &idle, &silent}) one->session->tick(later);
  EXPECT_THAT(head.sent, StartsWith("HTTP/1.1 408"));
  EXPECT_TRUE(head.is_closed);
  EXPECT_FALSE(body.is_closed);
  EXPECT_FALSE(idle.is_closed);
  EXPECT_TRUE(silent.is_closed);
  EXPECT_TRUE(silent.sent.empty());
  body.session->tick(later + std::chrono::seconds(40));
  idle.session->tick(later + std::chrono::seconds(100));
  EXPECT_THAT(body.sent, StartsWith("HTTP/1.1 408"));
  EXPECT_TRUE(idle.is_closed);
  EXPECT_TRUE(idle.sent.empty());
}

TEST(HttpSessionTest, EmptyLinesDoNotKeepAConnection) {
  Service service(test_models(), {});
  TestConnection one(service);
  const auto begin = HttpSession::Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  one.send("\r\n");
  one.session->tick(begin + std::chrono::milliseconds(10'010));
  EXPECT_TRUE(one.is_closed);
}

TEST(HttpSessionTest, AStreamThatAnErrorEndsIsNotComplete) {
  std::vector<AccessLine> lines;
  SessionOptions options;
  options.log = [&](const AccessLine& line) { lines.push_back(line); };
  const auto reply = std::make_shared<Reply>(nullptr, Reply::Clock::time_point::max());
  std::string sent;
  HttpSession session([&](const HttpRequest&) { return reply; }, options, "peer",
                      [&](std::string_view bytes) { sent += bytes; }, [] {});
  session.receive(kGet);
  reply->begin("text/event-stream");
  reply->write("data: 1\n\n");
  session.wake();
  reply->fail(ApiError(504, "too late"));
  session.wake();
  EXPECT_THAT(sent, HasSubstr("too late"));
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0].status, 200);
  EXPECT_EQ(lines[0].broken_off, "an error");
}

TEST(HttpSessionTest, AClientThatLeavesIsCancelled) {
  Service service(test_models(), {});
  for (int i = 0; i < 20; ++i) {
    TestConnection one(service);
    one.send(post("/v1/completions", R"({"model":"lm","prompt":"a","max_tokens":60,"n":16,"stream":true})"));
    one.session.reset();
    ASSERT_EQ(one.lines.size(), 1);
    EXPECT_EQ(one.lines[0].broken_off, "client left");
  }
  while (service.active() > 0) std::this_thread::yield();
}

TEST(HttpSessionTest, WaitsForTheBodyWithContinue) {
  Service service(test_models(), {});
  TestConnection one(service);
  const std::string bytes = post("/v1/completions", kHello + "}", "Expect: 100-continue\r\n");
  one.send(bytes.substr(0, bytes.find('{')));
  EXPECT_EQ(one.sent, "HTTP/1.1 100 Continue\r\n\r\n");
  one.send(bytes.substr(bytes.find('{')));
  one.run_until_lines(1);
  EXPECT_THAT(one.sent, HasSubstr("HTTP/1.1 200 OK"));
}

TEST(HttpSessionTest, FinishingWaitsForTheAnswer) {
  Service service(test_models(), {});
  TestConnection busy(service), idle(service);
  busy.send(post("/v1/completions", kHello + "}"));
  for (TestConnection* one : {&busy, &idle}) one->session->finish();
  EXPECT_TRUE(idle.is_closed);
  busy.run_until_lines(1);
  EXPECT_THAT(busy.sent, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_TRUE(busy.is_closed);
}

TEST(HttpSessionTest, AnswersBreakOffWithAnErrorWhenTheServerEnds) {
  Service service(test_models(), {});
  TestConnection stream(service), whole(service), idle(service);
  const std::string request = R"({"model":"lm","prompt":"a","max_tokens":60,"n":16,"seed":1)";
  stream.send(post("/v1/completions", request + R"(,"stream":true})"));
  whole.send(post("/v1/completions", request + "}"));
  while (stream.sent.empty()) stream.session->wake();
  for (TestConnection* one : {&stream, &whole, &idle}) {
    one->session->break_off();
    EXPECT_TRUE(one->is_closed);
  }
  EXPECT_THAT(stream.sent, HasSubstr("data: {\"error\":{\"message\":\"the server has ended\""));
  EXPECT_THAT(stream.sent, EndsWith("0\r\n\r\n"));
  EXPECT_THAT(whole.sent, StartsWith("HTTP/1.1 503"));
  EXPECT_TRUE(idle.sent.empty());
  for (const TestConnection* one : {&stream, &whole}) EXPECT_EQ(one->lines.at(0).broken_off, "server ended");
  while (service.active() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace multihead::serve
