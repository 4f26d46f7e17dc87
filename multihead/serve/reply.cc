#include "multihead/serve/reply.h"

#include <utility>

#include "multihead/core/text/json.h"

namespace multihead::serve {
namespace {

const char* openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:
    case 505:  // what the client's HTTP asks for
      return "invalid_request_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

std::string openai_body(const ApiError& error) {
  const Json json = Json::object({{"message", valid_utf8(error.what())},
                                  {"type", openai_type(error.status())},
                                  {"param", text_or_null(error.param())},
                                  {"code", text_or_null(error.code())}});
  return Json::object({{"error", json}}).dump();
}

std::string openai_event(const ApiError& error) { return "data: " + openai_body(error) + "\n\n"; }

}  // namespace

const ErrorStyle kOpenAiErrors = {openai_body, openai_event};

void Reply::put(std::unique_lock<std::mutex> lock) {
  lock.unlock();
  if (wake_) wake_();
}

void Reply::answer(int status, std::string_view type, std::string body, HttpHeaders headers) {
  std::unique_lock lock(mutex_);
  if (ended_ || begun_) return;
  headers.emplace_back("Content-Type", std::string(type));
  put_answer(std::move(lock), status, std::move(body), std::move(headers));
}

void Reply::put_answer(std::unique_lock<std::mutex> lock, int status, std::string body, HttpHeaders headers) {
  part_ = {.status = status, .headers = std::move(headers), .bytes = std::move(body), .ends = true};
  begun_ = ended_ = true;
  put(std::move(lock));
}

void Reply::begin(std::string_view type) {
  std::unique_lock lock(mutex_);
  if (std::exchange(begun_, true)) return;
  part_ = {.status = 200, .is_stream = true};
  part_.headers = {{"Content-Type", std::string(type)}, {"Cache-Control", "no-cache"}};
  put(std::move(lock));
}

void Reply::write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (ended_ || bytes.empty()) return;
  part_.bytes += bytes;
  put(std::move(lock));
}

void Reply::end(std::string_view last) {
  std::unique_lock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  part_.bytes += last;
  part_.ends = true;
  put(std::move(lock));
}

void Reply::fail(const ApiError& error) {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  if (begun_) {
    part_.bytes += errors_->event(error);
    part_.ends = ended_ = broken_off_ = true;
    put(std::move(lock));
    return;
  }
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (error.retry_after() > 0) headers.emplace_back("Retry-After", std::to_string(error.retry_after()));
  if (error.status() == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (!error.methods().empty()) headers.emplace_back("Allow", error.methods());
  put_answer(std::move(lock), error.status(), errors_->body(error), std::move(headers));
}

void Reply::note(const Facts& facts) {
  const std::lock_guard lock(mutex_);
  facts_ = facts;
}

Reply::Facts Reply::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

Reply::Part Reply::take() {
  const std::lock_guard lock(mutex_);
  Part part = std::exchange(part_, {});
  return part;
}

}  // namespace multihead::serve
