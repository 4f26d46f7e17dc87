#include "multihead/serve/session.h"

#include <array>
#include <charconv>
#include <ctime>
#include <utility>

#include "multihead/core/error.h"

namespace multihead::serve {

HttpSession::HttpSession(Handler handle, const SessionOptions& options, std::string peer, Send send,
                         std::function<void()> close)
    : handle_(std::move(handle)),
      options_(options),
      peer_(std::move(peer)),
      send_(std::move(send)),
      close_(std::move(close)),
      reader_(options.limits) {}

HttpSession::~HttpSession() {
  if (!reply_) return;
  reply_->cancel();
  log("client left");
}

size_t HttpSession::receive(std::string_view bytes) {
  if (is_closed_) return bytes.size();
  size_t taken = 0;
  try {
    while (!reply_ && !is_closed_ && taken < bytes.size()) {
      const bool was_idle = reader_.idle(), was_in_body = reader_.in_body();
      taken += reader_.take(bytes.substr(taken));
      const bool has_begun =
          was_idle && !reader_.idle();  // empty lines before a request are not its beginning
      if (has_begun || (!was_in_body && reader_.in_body())) since_ = Clock::now();
      if (reader_.wants_continue()) send_(http_head(100, {}));
      if (reader_.complete()) start(reader_.next());
    }
  } catch (const ApiError& error) {
    refuse(error);
    return bytes.size();
  }
  return is_closed_ ? bytes.size() : taken;
}

// Bytes that are not HTTP, or come too slowly, are answered all the same.
void HttpSession::refuse(const ApiError& error) {
  line_ = {.peer = peer_, .method = "-", .path = "-"};
  keeps_alive_ = false;
  request_ = {};
  since_ = Clock::now();
  reply_ = std::make_shared<Reply>(nullptr, Clock::time_point::max());
  reply_->fail(error);
  wake();
}

void HttpSession::start(HttpRequest request) {
  request_ = std::move(request);
  since_ = Clock::now();
  keeps_alive_ = request_.keeps_alive;
  line_ = {.peer = peer_, .method = request_.method, .path = request_.path};
  has_asked_ = true;
  reply_ = handle_(request_);
  request_.body = {};
  wake();
}

void HttpSession::send_head(const Reply::Part& part) {
  line_.status = part.status;
  HttpHeaders headers = part.headers;
  headers.emplace_back("Date", http_date(std::time(nullptr)));
  is_chunked_ = part.is_stream && request_.takes_chunks;
  if (part.is_stream && !is_chunked_) keeps_alive_ = false;  // the connection's end is the answer's
  if (is_chunked_) headers.emplace_back("Transfer-Encoding", "chunked");
  if (!part.is_stream) headers.emplace_back("Content-Length", std::to_string(part.bytes.size()));
  keeps_alive_ = keeps_alive_ && !is_finishing_;
  headers.emplace_back("Connection", keeps_alive_ ? "keep-alive" : "close");
  send_(http_head(part.status, headers));
}

void HttpSession::wake() {
  if (!reply_ || is_closed_) return;
  Reply::Part part = reply_->take();
  if (part.status != 0) send_head(part);
  if (request_.method == "HEAD") part.bytes.clear();
  line_.bytes += std::ssize(part.bytes);
  if (is_chunked_ && !part.bytes.empty()) {
    std::array<char, 20> digits = {};
    const auto [end, error] =
        std::to_chars(digits.data(), digits.data() + digits.size(), part.bytes.size(), 16);
    send_(concat(std::string_view(digits.data(), static_cast<size_t>(end - digits.data())), "\r\n",
                 part.bytes, "\r\n"));
  } else if (!part.bytes.empty()) {
    send_(part.bytes);
  }
  if (!part.ends) return;
  if (is_chunked_) send_("0\r\n\r\n");
  log(reply_->cancelled() ? "server ended" : reply_->broken_off() ? "an error" : "");
  reply_ = nullptr;
  is_chunked_ = false;
  since_ = Clock::now();
  if (!keeps_alive_ || is_finishing_) close();
}

void HttpSession::tick(Clock::time_point now) {
  if (is_closed_ || reply_) return;
  const double seconds = std::chrono::duration<double>(now - since_).count();
  if (reader_.idle()) {
    if (seconds > (has_asked_ ? options_.idle_patience : options_.head_patience)) close();
  } else if (seconds > (reader_.in_body() ? options_.body_patience : options_.head_patience)) {
    refuse(ApiError(408, "the request did not come in time"));
  }
}

void HttpSession::finish() {
  is_finishing_ = true;
  if (!reply_ && !is_closed_) close();
}

void HttpSession::break_off() {
  wake();
  finish();
  if (!reply_ || is_closed_) return;
  reply_->cancel();
  reply_->fail(ApiError(503, "the server has ended"));
  wake();
}

void HttpSession::log(std::string_view broken_off) {
  if (!options_.log) return;
  line_.seconds = std::chrono::duration<double>(Clock::now() - since_).count();
  line_.broken_off = broken_off;
  line_.facts = reply_->facts();
  options_.log(line_);
}

void HttpSession::close() {
  is_closed_ = true;
  close_();
}

}  // namespace multihead::serve
