// The members of a request. Private to serve/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/serve/error.h"
#include "multihead/serve/http.h"

namespace multihead::serve {

/// Reads each member by name and refuses those that nobody has read: a request never loses an option silently.
/// Null counts as absent. Every function throws ApiError 400 that names the member.
class Fields {
 public:
  /// A request's body. Throws ApiError. A member that is read must be one that /openapi.json describes:
  /// std::logic_error.
  explicit Fields(const HttpRequest& request);
  /// An object inside it; `place` goes before the names of its members: "stream_options.".
  Fields(const Json& json, std::string place);
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  const Json* find(std::string_view key);
  const Json& required(std::string_view key);
  bool boolean(std::string_view key, bool otherwise);
  int64_t integer(std::string_view key, int64_t otherwise, int64_t least, int64_t most);
  double number(std::string_view key, double otherwise, double least, double most);
  std::string text(std::string_view key, const std::string& otherwise = "");
  std::string required_text(std::string_view key);
  /// A text or several of them.
  std::vector<std::string> texts(std::string_view key, size_t most);
  /// Members that are supported only with one of these values.
  void only(std::string_view key, std::initializer_list<Json> values);
  /// Members that say nothing about the answer.
  void ignore(std::initializer_list<std::string_view> keys);
  void finish() const;

  std::string name(std::string_view key) const { return place_ + std::string(key); }
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  std::optional<Json> body_;
  const Json& json_;
  std::string place_;
  std::optional<std::string_view> path_;  // whose description names the members
  std::set<std::string, std::less<>> read_;
};

/// Whether /openapi.json describes this member of the path's requests.
bool is_described(std::string_view path, std::string_view member);

}  // namespace multihead::serve
