// The members of a request. Private to serve/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/serve/error.h"

namespace multihead::serve {

/// Reads each member by name and refuses those that nobody has read: a request never loses an option silently.
/// Null counts as absent. Every function throws ApiError 400 that names the member.
class Fields {
 public:
  /// `place` goes before the names of members: "stream_options.".
  explicit Fields(const Json& json, std::string place = "");

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
  const Json& json_;
  std::string place_;
  std::set<std::string, std::less<>> read_;
};

/// Of a request's body. Throws ApiError.
Json parse_body(const std::string& body);

}  // namespace multihead::serve
