#include "multihead/serve/http.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/serve/error.h"

namespace multihead::serve {
namespace {

// The status with which a request is refused, 0 if it is read whole, -1 if more is awaited. Bytes come `step` at a
// time.
int status_of(const std::string& bytes, size_t step = 1000, HttpRequest* request = nullptr) {
  HttpReader reader({.head = 512, .body = 1000});
  try {
    for (size_t at = 0; at < bytes.size() && !reader.complete();) {
      at += reader.take(std::string_view(bytes).substr(at, step));
    }
  } catch (const ApiError& error) {
    return error.status();
  }
  if (!reader.complete()) return -1;
  const HttpRequest read = reader.next();
  if (request != nullptr) *request = read;
  return 0;
}

TEST(HttpReaderTest, ReadsARequestInAnyPieces) {
  const std::string bytes =
      "\r\nPOST /v1/models/a%2Fb?x=1 HTTP/1.1\r\nHost: h\r\nX-A:  1 \r\nx-a: 2\r\nContent-Length: "
      "5\r\n\r\nhello";
  for (const size_t step : {1, 2, 3, 7, 1000}) {
    HttpRequest request;
    ASSERT_EQ(status_of(bytes, step, &request), 0) << step;
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/models/a/b");
    EXPECT_EQ(request.header("x-a"), "1, 2");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keeps_alive);
  }
}

TEST(HttpReaderTest, ReadsChunks) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const size_t step : {1, 3, 1000}) {
    HttpRequest request;
    ASSERT_EQ(status_of(head + "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n", step, &request),
              0);
    EXPECT_EQ(request.body, "abc0123456789");
  }
  EXPECT_EQ(status_of(head + "g\r\n"), 400);
  EXPECT_EQ(status_of(head + "-1\r\n"), 400);
  EXPECT_EQ(status_of(head + "3\r\nabcd\r\n"), 400);
  EXPECT_EQ(status_of(head + "3\nabc\r\n"), 400);
  EXPECT_EQ(status_of(head + "ffffffffffffffffffff\r\n"), 400);
  EXPECT_EQ(status_of(head + "3e9\r\n"), 413);
  EXPECT_EQ(status_of(head + "0\r\n" + std::string(100, 'a') + ": b\r\n"), -1);
  EXPECT_EQ(status_of(head + "0\r\n" + std::string(600, 'a') + "\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "1;a=\"b\rc\"\r\na\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "0\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "0\r\na:\rb\r\n\r\n"), 400);
}

TEST(HttpReaderTest, RefusesWhatTwoProgramsCouldReadDifferently) {
  const auto with = [](const std::string& headers) {
    return "POST / HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n";
  };
  const std::pair<std::string, int> cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
      {"GET / FTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET http://g/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET http://g/ HTTP/1.1\r\n\r\n", 400},
      {"GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET http://h?a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET /%2 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {with("Host: h\r\n"), 400},
      {with("Content-Length: 1\r\nContent-Length: 1\r\n"), 400},
      {with("Content-Length: -1\r\n"), 400},
      {with("Content-Length: +1\r\n"), 400},
      {with("Content-Length: 1x\r\n"), 400},
      {with("Content-Length: 99999999999999999999\r\n"), 400},
      {with("Content-Length: 1001\r\n"), 413},
      {with("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 400},
      {with("Transfer-Encoding: gzip, chunked\r\n"), 501},
      {with("Content-Encoding: gzip\r\n"), 415},
      {with("Expect: cake\r\n"), 417},
      {with("A : b\r\n"), 400},
      {with(" folded\r\n"), 400},
      {with("A: b\x01\r\n"), 400},
      {with("A\r\n"), 400},
      {with("A: " + std::string(600, 'a') + "\r\n"), 431},
      {std::string(600, 'a'), 431},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    for (const size_t step : {1, 1000}) EXPECT_EQ(status_of(bytes, step), status) << bytes;
  }
}

// As clients of a proxy send them.
TEST(HttpReaderTest, ReadsAbsoluteTargets) {
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"GET http://h:80/v1/a%2Fb?x HTTP/1.1\r\nHost: H:80\r\n\r\n", "/v1/a/b", "H:80"},
      {"GET HTTPS://h HTTP/1.1\r\nHost: h\r\n\r\n", "/", "h"},
      {"GET http://h/a HTTP/1.0\r\n\r\n", "/a", "h"},
      {"GET /http://g/ HTTP/1.1\r\nHost: h\r\n\r\n", "/http://g/", "h"},
  };
  for (const auto& [bytes, path, host] : cases) {
    HttpRequest request;
    ASSERT_EQ(status_of(bytes, 1000, &request), 0) << bytes;
    EXPECT_EQ(request.path, path);
    EXPECT_EQ(request.header("host"), host);
  }
}

TEST(HttpReaderTest, AwaitsTheRest) {
  const std::string bytes = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_EQ(status_of(bytes.substr(0, size)), -1) << size;
}

TEST(HttpReaderTest, SaysContinueOnce) {
  HttpReader reader;
  reader.take("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_TRUE(reader.wants_continue());
  EXPECT_FALSE(reader.wants_continue());
}

TEST(HttpReaderTest, OldClientsCloseUnlessTheySayOtherwise) {
  HttpRequest request;
  ASSERT_EQ(status_of("GET / HTTP/1.0\r\n\r\n", 9, &request), 0);
  EXPECT_FALSE(request.keeps_alive);
  EXPECT_FALSE(request.takes_chunks);
  ASSERT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\n", 9, &request), 0);
  EXPECT_FALSE(request.keeps_alive);
}

TEST(HttpDateTest, IsThatOfTheStandard) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");  // RFC 9110's example
  EXPECT_EQ(http_date(951782400), "Tue, 29 Feb 2000 00:00:00 GMT");
}

TEST(HttpReaderTest, MutatedRequestsAreReadOrRefused) {
  const std::string seeds[] = {
      "POST /v1/a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n"};
  std::mt19937 random(1);
  int outcomes[3] = {};
  for (int i = 0; i < 40'000; ++i) {
    std::string bytes = seeds[random() % 2];
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 8));
      }
      if (bytes.empty()) bytes = "x";
    }
    const int status = status_of(bytes, 1 + random() % 60);
    ++outcomes[status > 0 ? 2 : status + 1];
    EXPECT_TRUE(status <= 0 || (status >= 400 && status < 506)) << bytes;
  }
  for (const int count : outcomes) EXPECT_GT(count, 1000);
}

}  // namespace
}  // namespace multihead::serve
