// A server on sockets of the test's own.
#include "multihead/serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "multihead/core/error.h"
#include "multihead/serve/test_models-inl.h"

namespace multihead::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct TestSocket : Socket {
  void send(std::string_view bytes) override { sent += bytes; }
  void end() override {}
  std::string sent;
};

// NOLINTBEGIN: a function pointer carries nothing
std::string last_answer;
std::atomic<bool> has_answered;
// NOLINTEND

// One client, who asks once and stays.
int run_one_client(const SocketLoop& loop) {
  TestSocket socket;
  const auto talk = loop.open(socket, "peer");
  loop.on_ready(4321);
  const std::string request = "GET /health HTTP/1.1\r\nHost: box.example\r\n\r\n";
  EXPECT_EQ(talk->receive(request), request.size());
  while (loop.phase() == SocketLoop::Phase::serve) {
    talk->wake();
    has_answered = !socket.sent.empty();
  }
  EXPECT_EQ(loop.phase(), SocketLoop::Phase::finish);
  talk->finish();
  last_answer = socket.sent;
  return 0;
}

TEST(ServerTest, AnswersOnSocketsOfAnyKindUntilItStops) {
  has_answered = false;
  int lines = 0;
  ServerOptions options = {.host = "box.example", .port = 4321};
  options.session.log = [&](const AccessLine& line) { lines += line.status == 200; };
  Server server(run_one_client, test_models(), {}, options);
  EXPECT_EQ(server.port(), 4321);
  EXPECT_FALSE(server.has_ended());
  EXPECT_THROW(server.stop(-1), ValueError);
  while (!has_answered) std::this_thread::yield();
  server.stop(60);
  EXPECT_TRUE(server.has_ended());
  EXPECT_THAT(last_answer,
              StartsWith("HTTP/1.1 200"));  // the name that it listens on is one it may be called by
  EXPECT_EQ(lines, 1);
  server.stop(0);
}

TEST(ServerTest, SaysWhyThereIsNoAddressAndWhatEndedIt) {
  const ServerOptions options = {.port = 80};
  const auto refusal_of = [&](RunSockets run) -> std::string {
    try {
      Server server(run, test_models(), {}, options);
      while (!server.has_ended()) std::this_thread::yield();
      server.stop(0);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal_of([](const SocketLoop&) { return EADDRINUSE; }),
              HasSubstr("port 80 on 127.0.0.1 is in use; port 0 picks a free one"));
  EXPECT_THAT(refusal_of([](const SocketLoop&) { return EACCES; }), HasSubstr("Permission denied"));
  EXPECT_THAT(refusal_of([](const SocketLoop&) { return -1; }), HasSubstr("no such host"));
  EXPECT_THAT(refusal_of([](const SocketLoop& loop) {
                loop.on_ready(80);
                return EIO;
              }),
              HasSubstr("Input/output error"));
}

}  // namespace
}  // namespace multihead::serve
