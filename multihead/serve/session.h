// One client's connection: its requests, one after the other, and the answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "multihead/serve/reply.h"

namespace multihead::serve {

/// A line of the log: the facts about a request that is over.
struct AccessLine {
  std::string peer, method, path;
  int status = 0;
  int64_t bytes = 0;  ///< of the answer's body
  double seconds = 0;
  std::string_view broken_off = {};  ///< why the answer is not complete; empty: it is
  Reply::Facts facts = {};
};

struct SessionOptions {
  HttpLimits limits = {};
  /// Seconds in which a request's headers must have come, the first one's since the connection …
  double head_patience = 10;
  double body_patience = 60;   ///< … its body …
  double idle_patience = 120;  ///< … and the next request
  std::function<void(const AccessLine& line)> log = {};
};

/// Belongs to the thread that sends.
class HttpSession {
 public:
  using Clock = Reply::Clock;
  using Send = std::function<void(std::string_view bytes)>;
  /// Begins to answer, as Service::handle() does.
  using Handler = std::function<std::shared_ptr<Reply>(const HttpRequest& request)>;

  /// `close`: after what was sent, the connection ends.
  HttpSession(Handler handle, const SessionOptions& options, std::string peer, Send send,
              std::function<void()> close);
  /// The client has gone: what it waits for is cancelled.
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  /// Takes bytes from the front and returns how many. While a request is answered, the next one waits.
  size_t receive(std::string_view bytes);
  /// Sends what the answer has by now.
  void wake();
  /// Ends a connection whose client is too slow.
  void tick(Clock::time_point now);
  /// Ends the connection as soon as no request is being answered.
  void finish();
  /// Ends the connection now: an answer that has begun breaks off with an error.
  void break_off();

 private:
  void start(HttpRequest request);
  void send_head(const Reply::Part& part);
  void refuse(const ApiError& error);
  void log(std::string_view broken_off);
  void close();

  Handler handle_;
  const SessionOptions& options_;
  std::string peer_;
  Send send_;
  std::function<void()> close_;
  HttpReader reader_;
  Clock::time_point since_ = Clock::now();  // the request began to come, or the last one ended
  std::shared_ptr<Reply> reply_;
  HttpRequest request_;
  AccessLine line_;
  bool keeps_alive_ = true, is_chunked_ = false, is_closed_ = false, is_finishing_ = false,
       has_asked_ = false;
};

}  // namespace multihead::serve
