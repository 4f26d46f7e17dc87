// HTTP/1.1 without sockets: bytes to requests, answers to bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace multihead::serve {

struct HttpLimits {
  size_t head = size_t{16} << 10;  ///< bytes of the request line and the headers
  size_t body = size_t{8} << 20;
};

struct HttpRequest {
  std::string method, path;                    ///< the path decoded, without its query
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  bool keeps_alive = true;
  bool takes_chunks = true;  ///< HTTP/1.1

  /// Empty if there is none.
  const std::string& header(const std::string& name) const;
};

/// Reads the requests of one connection, strictly: what two programs could read differently is refused.
class HttpReader {
 public:
  explicit HttpReader(const HttpLimits& limits = {}) : limits_(limits) {}

  /// Takes bytes from the front, at most up to the end of a request, and returns how many. Throws ApiError:
  /// 400, 413, 415, 417, 431, 501, 505. The connection cannot be used after that.
  size_t take(std::string_view bytes);
  /// A whole request has come.
  bool complete() const { return stage_ == Stage::complete; }
  /// Nothing of a request has come.
  bool idle() const { return stage_ == Stage::head && head_.empty(); }
  bool in_body() const { return !complete() && stage_ != Stage::head; }
  /// The client waits for "100 Continue" before it sends the body; said once.
  bool wants_continue();
  /// The request; the reader is ready for the next one.
  HttpRequest next();

 private:
  enum class Stage : uint8_t { head, body, chunk_size, chunk, chunk_end, trailer, complete };
  void read_head();
  void read_header(std::string_view line);
  void take_host(std::string_view host);
  void choose_body();
  bool take_line(std::string_view bytes, size_t& at, size_t most);
  void read_chunk_size();

  HttpLimits limits_;
  Stage stage_ = Stage::head;
  std::string head_, line_;
  size_t left_ = 0, trailers_ = 0;
  bool wants_continue_ = false;
  HttpRequest request_;
};

/// Whether a text holds what the values of headers cannot: bytes below 0x20 other than TAB, and 0x7f.
bool has_controls(std::string_view text);

/// As headers write it: "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, section 5.6.7), in any locale.
std::string http_date(std::time_t time);

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;
/// The status line and the headers, with the empty line behind them.
std::string http_head(int status, const HttpHeaders& headers);

}  // namespace multihead::serve
