// A JSON value: strict to read, deterministic to write.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace multihead {

class Json;
struct JsonMember;

/// What a text may ask for before it is refused.
struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  size_t values = size_t{16} << 20;
  int depth = 64;
};

/// Members of an object in the order they came; look-up is logarithmic whatever the keys are.
class JsonObject {
 public:
  // Out of line because JsonMember is still incomplete here, which Clang minds.
  JsonObject();
  JsonObject(const JsonObject& other);
  JsonObject(JsonObject&&) noexcept;
  JsonObject& operator=(const JsonObject& other);
  JsonObject& operator=(JsonObject&&) noexcept;
  ~JsonObject();

  const std::vector<JsonMember>& members() const { return members_; }
  /// Null if there is no such key.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  /// The new value, or null if the key is there already.
  Json* insert(std::string key);
  bool erase(std::string_view key);

 private:
  using Index = std::map<std::string, size_t, std::less<>>;
  size_t position(std::string_view key) const;  // members_.size(): absent
  void build_index();

  std::vector<JsonMember> members_;
  std::unique_ptr<Index> index_;  // only for objects with many members
};

class Json {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };

  Json() = default;
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T value) : value_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Json(T value) : value_(checked_integer(value)) {}
  Json(double value) : value_(value) {}
  /// Kept as the shortest decimal that reads back as this float: 3e-4f is written 0.0003.
  Json(float value);
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::vector<Json> items) : value_(std::move(items)) {}
  static Json array() { return Json(std::vector<Json>()); }
  static Json object() { return Json(JsonObject()); }
  static Json object(std::initializer_list<JsonMember> members);

  /// RFC 8259 and no more: UTF-8 without byte order mark; no comments, trailing commas, NaN or Infinity;
  /// duplicate keys and numbers beyond a double are errors. `where` opens every message, usually a file name.
  /// Integers within int64 are exact; larger ones become numbers.
  /// Throws    FormatError with line, column and byte
  static Json parse(std::string_view text, std::string_view where = "json", const JsonLimits& limits = {});
  /// One line, or lines indented by `indent` >= 0 spaces. The same value always gives the same bytes.
  /// Throws    ValueError for NaN, Inf and strings that are not UTF-8
  std::string dump(int indent = -1) const;

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::null; }
  bool is_bool() const { return kind() == Kind::boolean; }
  bool is_integer() const { return kind() == Kind::integer; }
  /// Integers are numbers too.
  bool is_number() const { return kind() == Kind::number || is_integer(); }
  bool is_string() const { return kind() == Kind::string; }
  bool is_array() const { return kind() == Kind::array; }
  bool is_object() const { return kind() == Kind::object; }

  // Each throws FormatError "json: expected an integer, got a string" unless the kind fits.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;
  const std::vector<Json>& items() const;
  std::vector<Json>& items();
  const std::vector<JsonMember>& members() const;

  /// Elements of an array, members of an object; 0 for everything else.
  size_t size() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Null if there is no such member, or this is not an object.
  const Json* find(std::string_view key) const;
  /// Throws FormatError naming the key.
  const Json& at(std::string_view key) const;
  const Json& at(size_t index) const;
  /// Inserts null if the key is missing; a null value becomes an object.
  Json& operator[](std::string_view key);
  /// True if there was such a member.
  bool erase(std::string_view key);
  /// A null value becomes an array.
  void push_back(Json value);

  bool operator==(const Json& other) const;

 private:
  friend class JsonBuilder;
  explicit Json(JsonObject object) : value_(std::move(object)) {}

  template <std::integral T>
  static int64_t checked_integer(T value) {
    if constexpr (std::unsigned_integral<T>) return checked_unsigned(value);
    return static_cast<int64_t>(value);
  }
  static int64_t checked_unsigned(uint64_t value);  // ValueError past 2^63

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, std::vector<Json>, JsonObject> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

/// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
std::string_view name(Json::Kind kind);
std::ostream& operator<<(std::ostream& out, const Json& json);

/// Text in double quotes for messages: control characters and bytes outside UTF-8 escaped, the rest cut after
/// `limit` bytes, so that a hostile name cannot forge a line of a log.
std::string quote(std::string_view text, size_t limit = 80);
/// Length of the UTF-8 sequence at `text[at]`, or 0 if it is none (RFC 3629: no surrogates, no long forms).
size_t utf8_sequence(std::string_view text, size_t at);

}  // namespace multihead
