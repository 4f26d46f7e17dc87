// The answer to one request on its way from the thread that computes to the one that sends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "multihead/serve/error.h"
#include "multihead/serve/http.h"

namespace multihead::serve {

/// How a dialect writes errors: as the body of an answer, and in a stream that has begun.
struct ErrorStyle {
  std::string (*body)(const ApiError& error);
  std::string (*event)(const ApiError& error);
};
/// {"error": {"message", "type", "param", "code"}}, as OpenAI's.
extern const ErrorStyle kOpenAiErrors;

/// Any thread may call any function. What comes after the end is left out.
class Reply {
 public:
  using Clock = std::chrono::steady_clock;

  /// `wake` tells the sending thread that there is something to take.
  Reply(std::function<void()> wake, Clock::time_point deadline)
      : wake_(std::move(wake)), deadline_(deadline) {}

  /// All of an answer.
  void answer(int status, std::string_view type, std::string body, HttpHeaders headers = {});
  void answer_json(std::string body) { answer(200, "application/json", std::move(body)); }
  /// The parts of an answer whose length is not known yet.
  void begin(std::string_view type);
  void write(std::string_view bytes);
  void end(std::string_view last = "");
  /// An answer, or the end of a stream.
  void fail(const ApiError& error);
  void set_errors(const ErrorStyle& style) { errors_ = &style; }

  /// Nobody waits for the answer any more: the client has gone.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }
  /// Whether an error ended a stream that had begun.
  bool broken_off() const { return broken_off_; }
  Clock::time_point deadline() const { return deadline_; }

  /// For the line in the log.
  struct Facts {
    std::string model = {};
    int64_t prompt_tokens = 0, new_tokens = 0;
  };
  void note(const Facts& facts);
  Facts facts() const;

  /// The bytes to be sent next. A status is there once, with the first part.
  struct Part {
    int status = 0;
    HttpHeaders headers = {};
    std::string bytes = {};
    bool is_stream = false, ends = false;
  };
  Part take();

 private:
  void put(std::unique_lock<std::mutex> lock);
  void put_answer(std::unique_lock<std::mutex> lock, int status, std::string body, HttpHeaders headers);

  mutable std::mutex mutex_;
  std::function<void()> wake_;
  Clock::time_point deadline_;
  const ErrorStyle* errors_ = &kOpenAiErrors;
  std::atomic<bool> cancelled_ = false, broken_off_ = false;
  Part part_;
  bool begun_ = false, ended_ = false;
  Facts facts_;
};

}  // namespace multihead::serve
