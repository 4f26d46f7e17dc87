#include "multihead/serve/http.h"

#include <algorithm>
#include <array>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/serve/error.h"

namespace multihead::serve {
namespace {

bool is_token_char(char c) {
  const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return alphanumeric || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

constexpr std::string_view kBlanks = " \t";

struct HeaderLine {
  std::string_view name, value;
};

HeaderLine header_in(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    throw ApiError(400, concat("a header must be NAME: VALUE, got ", quote(line)));
  const std::string_view value = trimmed(line.substr(colon + 1), kBlanks);
  if (has_controls(value)) throw ApiError(400, "a header holds control characters");
  return {line.substr(0, colon), value};
}

/// The number that a text of digits is; -1: it is none, or too long to be meant.
int64_t natural_number(std::string_view digits, int base) {
  if (digits.size() > 15 || digits.starts_with('-')) return -1;
  return spelled_number<int64_t>(digits, base).value_or(-1);
}

std::string decoded_path(std::string_view target) {
  const std::string_view encoded = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i] != '%') {
      path += encoded[i];
      continue;
    }
    const int64_t byte = i + 2 < encoded.size() ? natural_number(encoded.substr(i + 1, 2), 16) : -1;
    if (byte < 0x20 || byte == 0x7f) throw ApiError(400, "the request's path has a bad %-escape");
    path += static_cast<char>(byte);
    i += 2;
  }
  if (find_invalid_utf8(path) != std::string::npos) throw ApiError(400, "the request's path is not UTF-8");
  return path;
}

// Of "http://host/path"; empty: the target is a path.
std::string_view host_in(std::string_view target) {
  const size_t scheme = target.find("://");
  const std::string name = in_lower_case(target.substr(0, std::min(scheme, target.size())));
  if (name != "http" && name != "https") return {};
  const std::string_view rest = target.substr(scheme + 3);
  return rest.substr(0, rest.find_first_of("/?#"));
}

struct Reason {
  int status;
  const char* words;
};
constexpr auto kReasons = std::to_array<Reason>({{100, "Continue"},
                                                 {200, "OK"},
                                                 {400, "Bad Request"},
                                                 {401, "Unauthorized"},
                                                 {403, "Forbidden"},
                                                 {404, "Not Found"},
                                                 {405, "Method Not Allowed"},
                                                 {408, "Request Timeout"},
                                                 {413, "Content Too Large"},
                                                 {415, "Unsupported Media Type"},
                                                 {417, "Expectation Failed"},
                                                 {422, "Unprocessable Content"},
                                                 {429, "Too Many Requests"},
                                                 {431, "Request Header Fields Too Large"},
                                                 {500, "Internal Server Error"},
                                                 {501, "Not Implemented"},
                                                 {503, "Service Unavailable"},
                                                 {504, "Gateway Timeout"},
                                                 {505, "HTTP Version Not Supported"}});

}  // namespace

const std::string& HttpRequest::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

size_t HttpReader::take(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size() && stage_ != Stage::complete) {
    switch (stage_) {
      case Stage::head: {
        if (head_.empty() && (bytes[at] == '\r' || bytes[at] == '\n')) {
          ++at;  // empty lines before a request, which some clients send
          break;
        }
        const size_t before = head_.size();
        const size_t taken = std::min(bytes.size() - at, limits_.head + 4 - before);
        head_.append(bytes.substr(at, taken));
        const size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        if (end == std::string::npos) {
          if (head_.size() >= limits_.head + 4)
            throw ApiError(431, concat("the request's headers exceed ", limits_.head, " bytes"));
          return at + taken;
        }
        at += end + 4 - before;
        head_.resize(end);
        read_head();
        break;
      }
      case Stage::body:
      case Stage::chunk: {
        const size_t taken = std::min(left_, bytes.size() - at);
        request_.body.append(bytes.substr(at, taken));
        at += taken;
        left_ -= taken;
        if (left_ == 0) stage_ = stage_ == Stage::body ? Stage::complete : Stage::chunk_end;
        break;
      }
      case Stage::chunk_size:
        if (take_line(bytes, at, 256)) read_chunk_size();
        break;
      case Stage::chunk_end:
        if (!take_line(bytes, at, 2)) break;
        if (!line_.empty()) throw ApiError(400, "a chunk of the body is longer than it says");
        stage_ = Stage::chunk_size;
        break;
      case Stage::trailer:
        if (!take_line(bytes, at, limits_.head)) break;
        trailers_ += line_.size() + 2;
        if (trailers_ > limits_.head) throw ApiError(431, "the request's trailers are too long");
        if (!line_.empty()) header_in(line_);
        stage_ = line_.empty() ? Stage::complete : Stage::trailer;
        line_.clear();
        break;
      case Stage::complete:
        break;
    }
  }
  return at;
}

// Adds to line_ up to a line's end, which is left out. False: it has not come yet.
bool HttpReader::take_line(std::string_view bytes, size_t& at, size_t most) {
  while (at < bytes.size()) {
    line_ += bytes[at++];
    if (line_.ends_with("\r\n")) {
      line_.resize(line_.size() - 2);
      return true;
    }
    if (line_.size() >= most + 2 || line_.back() == '\n')
      throw ApiError(400, "the request's body is not in chunks as it says");
  }
  return false;
}

void HttpReader::read_chunk_size() {
  const int64_t size =
      natural_number(trimmed(std::string_view(line_).substr(0, line_.find(';')), kBlanks), 16);
  const bool is_odd = has_controls(line_);
  line_.clear();
  if (size < 0 || is_odd) throw ApiError(400, "the request's body is not in chunks as it says");
  if (request_.body.size() + static_cast<size_t>(size) > limits_.body)
    throw ApiError(413, concat("the request's body exceeds ", limits_.body, " bytes"));
  left_ = static_cast<size_t>(size);
  stage_ = size == 0 ? Stage::trailer : Stage::chunk;
}

void HttpReader::read_head() {
  const std::string head = std::exchange(head_, {});
  const size_t first_end = std::min(head.find("\r\n"), head.size());
  const std::string_view line = std::string_view(head).substr(0, first_end);
  const size_t one = line.find(' '), two = line.rfind(' ');
  if (one == std::string_view::npos || one == two || !is_token(line.substr(0, one)))
    throw ApiError(400, "the request's first line must be METHOD PATH HTTP/1.1");
  std::string_view target = line.substr(one + 1, two - one - 1);
  const std::string_view version = line.substr(two + 1), host = host_in(target);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    throw ApiError(version.starts_with("HTTP/") ? 505 : 400, "the request must be HTTP/1.1 or HTTP/1.0");
  }
  const bool is_visible =
      std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < 127; });
  if (!host.empty()) target.remove_prefix(static_cast<size_t>(host.end() - target.begin()));
  if (target.empty() && !host.empty()) target = "/";
  if (!target.starts_with('/') || !is_visible)
    throw ApiError(400, "the request's path must begin with / and hold no spaces");
  request_ = {.method = std::string(line.substr(0, one)), .path = decoded_path(target)};
  request_.takes_chunks = version == "HTTP/1.1";
  for (size_t at = first_end; at < head.size();) {
    at += 2;
    const size_t end = std::min(head.find("\r\n", at), head.size());
    read_header(std::string_view(head).substr(at, end - at));
    at = end;
  }
  if (!host.empty()) take_host(host);
  choose_body();
}

// A proxy may go by the target's host where another program goes by the header.
void HttpReader::take_host(std::string_view host) {
  const std::string& named = request_.header("host");
  if (!named.empty() && in_lower_case(named) != in_lower_case(host)) {
    throw ApiError(400, concat("the request's target names the host ", quote(host), ", its header host ",
                               quote(named), "; they must be the same"));
  }
  if (!request_.takes_chunks) request_.headers["host"] = host;
}

void HttpReader::read_header(std::string_view line) {
  const auto [name, value] = header_in(line);
  if (request_.headers.size() >= 100) throw ApiError(431, "the request has more than 100 headers");
  const auto [at, is_new] = request_.headers.emplace(in_lower_case(name), std::string(value));
  if (is_new) return;
  for (const char* single :
       {"host", "content-length", "transfer-encoding", "authorization", "content-encoding"}) {
    if (at->first == single) throw ApiError(400, concat("the header ", single, " comes twice"));
  }
  at->second += concat(", ", value);
}

void HttpReader::choose_body() {
  const std::string connection = in_lower_case(request_.header("connection"));
  request_.keeps_alive = request_.takes_chunks ? connection.find("close") == std::string::npos
                                               : connection.find("keep-alive") != std::string::npos;
  if (request_.takes_chunks && !request_.headers.contains("host"))
    throw ApiError(400, "the header host is missing");
  if (const std::string encoding = in_lower_case(request_.header("content-encoding"));
      !encoding.empty() && encoding != "identity")
    throw ApiError(415, concat("bodies with content-encoding ", quote(encoding), " are not supported"));
  if (const std::string expected = in_lower_case(request_.header("expect")); !expected.empty()) {
    if (expected != "100-continue") throw ApiError(417, concat("cannot meet expect: ", quote(expected)));
    wants_continue_ = request_.takes_chunks;
  }
  const bool has_length = request_.headers.contains("content-length");
  if (request_.headers.contains("transfer-encoding")) {
    const std::string coding = in_lower_case(request_.header("transfer-encoding"));
    if (coding != "chunked")
      throw ApiError(501, concat("transfer-encoding ", quote(coding), " is not supported"));
    if (has_length || !request_.takes_chunks)
      throw ApiError(400, "transfer-encoding beside content-length, or in HTTP/1.0");
    trailers_ = 0;
    stage_ = Stage::chunk_size;
    return;
  }
  const int64_t length = has_length ? natural_number(request_.header("content-length"), 10) : 0;
  if (length < 0)
    throw ApiError(400,
                   concat("content-length must be a number, got ", quote(request_.header("content-length"))));
  if (static_cast<size_t>(length) > limits_.body) {
    throw ApiError(413, concat("the request's body has ", length, " bytes, the limit is ", limits_.body));
  }
  left_ = static_cast<size_t>(length);
  stage_ = left_ == 0 ? Stage::complete : Stage::body;
}

bool HttpReader::wants_continue() { return in_body() && std::exchange(wants_continue_, false); }

HttpRequest HttpReader::next() {
  stage_ = Stage::head;
  wants_continue_ = false;
  return std::exchange(request_, {});
}

bool has_controls(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}

std::string http_date(std::time_t time) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm at = {};
  gmtime_r(&time, &at);
  char numbers[32] = {};
  std::string date = concat(kDays[at.tm_wday], ", ");
  date.append(numbers, std::strftime(numbers, sizeof numbers, "%d ", &at)).append(kMonths[at.tm_mon]);
  return date.append(numbers, std::strftime(numbers, sizeof numbers, " %Y %H:%M:%S GMT", &at));
}

std::string http_head(int status, const HttpHeaders& headers) {
  const auto* reason =
      std::find_if(kReasons.begin(), kReasons.end(), [&](const Reason& r) { return r.status == status; });
  std::string head = concat("HTTP/1.1 ", status, " ", reason == kReasons.end() ? "" : reason->words, "\r\n");
  for (const auto& [name, value] : headers) head += concat(name, ": ", value, "\r\n");
  return head + "\r\n";
}

}  // namespace multihead::serve
