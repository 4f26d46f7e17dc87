// A JSON value: strict parsing, deterministic output.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/text/utf8.h"

namespace multihead {

struct JsonMember;
class JsonText;

/// Limits on parsed text.
struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  size_t values = size_t{16} << 20;
  int depth = 64;
  /// Memory of the values: at most this many times the text's size, but at least `least_memory`.
  size_t memory_factor = 8, least_memory = size_t{16} << 20;
};

/// 16 bytes; texts of 16 characters and more, arrays and objects have one piece of memory besides.
class Json {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };

  Json() : Json(kNull, int64_t{0}) {}
  Json(std::nullptr_t) : Json() {}
  template <std::same_as<bool> T>
  Json(T value) : Json(kBoolean, int64_t{value}) {}
  /// Throws ValueError past 2^63.
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Json(T value)
      : Json(kInteger, std::in_range<int64_t>(value) ? static_cast<int64_t>(value) : too_large(value)) {}
  Json(double value) : Json(kNumber, std::bit_cast<int64_t>(value)) {}
  /// Kept as the shortest decimal that reads back as this float: 3e-4f is written 0.0003.
  Json(float value);
  Json(const char* value) : Json(std::string_view(value)) {}
  Json(const std::string& value) : Json(std::string_view(value)) {}
  Json(std::string_view value);
  Json(const JsonText& value);
  Json(std::vector<Json> items);
  static Json array() { return {kArray, 0}; }
  static Json object() { return {kObject, 0}; }
  static Json object(std::initializer_list<JsonMember> members);
  Json(const Json& other);
  Json(Json&& other) noexcept : Json() { swap(other); }
  Json& operator=(Json other) noexcept {
    swap(other);
    return *this;
  }
  ~Json();

  /// Strict RFC 8259: UTF-8 without byte order mark; no comments, trailing commas, NaN or Infinity;
  /// duplicate keys and numbers beyond a double are errors. `where`, usually a file name, starts every
  /// message. Integers within int64 are exact; larger ones are numbers, written with their digits again.
  /// Throws    FormatError with line, column and byte
  static Json parse(std::string_view text, std::string_view where = "json", const JsonLimits& limits = {});
  /// One line, or lines indented by `indent` >= 0 spaces. The same value always gives the same bytes.
  /// Throws    ValueError for NaN, Inf and strings that are not UTF-8
  std::string dump(int indent = -1) const;

  Kind kind() const;
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
  /// The digits, with the sign, of an integer beyond int64, which is a number; else empty.
  std::string_view digits() const;
  std::string as_string() const { return std::string(text()); }
  std::span<const Json> items() const;
  /// In input order.
  std::span<const JsonMember> members() const;

  /// Elements of an array, members of an object; 0 for everything else.
  size_t size() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Null if there is no such member, or this is not an object. Constant time for any keys.
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
  friend class JsonText;
  // The first byte: the length of a short text, which lies in the bytes after it, or one of these; then the
  // last eight bytes are a number, or a pointer to memory.
  enum Mark : unsigned char {
    kLongText = 16,
    kDigits,  // of an integer beyond int64
    kArray,
    kObject,
    kNull,
    kBoolean,
    kInteger,
    kNumber
  };

  Json(Mark mark, int64_t payload);
  static Json of_characters(Mark mark, std::string_view characters);
  [[noreturn]] static int64_t too_large(uint64_t value);
  void swap(Json& other) noexcept { std::swap(bytes_, other.bytes_); }
  void expect(Kind wanted) const;
  template <class T>
  T payload() const {
    T value;
    std::memcpy(&value, bytes_ + 8, sizeof value);
    return value;
  }
  std::string_view text() const;
  void reserve(size_t capacity);
  /// Appended to an array.
  Json* append(Json&& value);
  /// The new value of an object, or null if the key is there already.
  Json* insert(std::string_view key);
  /// Gives back memory that further elements would have taken.
  void fit() { reserve(size()); }

  alignas(8) unsigned char bytes_[16] = {};
};

/// The key of a member: a text that does not change.
class JsonText {
 public:
  explicit JsonText(std::string_view text) : value_(text) {}
  operator std::string_view() const { return value_.text(); }  // NOLINT(google-explicit-constructor)
  operator std::string() const { return value_.as_string(); }  // NOLINT(google-explicit-constructor)
  std::string_view view() const { return value_.text(); }
  bool empty() const { return view().empty(); }

 private:
  friend class Json;
  Json value_;
};

std::ostream& operator<<(std::ostream& out, const JsonText& text);
inline bool operator==(const JsonText& a, std::string_view b) { return a.view() == b; }

struct JsonMember {
  JsonMember(std::string_view name, Json content) : key(name), value(std::move(content)) {}
  JsonText key;
  Json value;
};

/// NaN and Inf, which JSON lacks, become null.
Json number_or_null(double x);
/// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
std::string_view name(Json::Kind kind);
std::ostream& operator<<(std::ostream& out, const Json& json);

}  // namespace multihead
