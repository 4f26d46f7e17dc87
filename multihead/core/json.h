// A JSON value: strict to read, deterministic to write.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace multihead {

class Json;
struct JsonMember;

/// What a text may ask for before it is refused.
struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  size_t values = size_t{16} << 20;
  int depth = 64;
  /// Bytes that the values may take: so many times the text's, but no less than `least_memory`.
  size_t memory_factor = 8, least_memory = size_t{16} << 20;
};

/// A text that does not change: 16 bytes, and memory of its own from 16 characters on.
class JsonText {
 public:
  JsonText() = default;
  explicit JsonText(std::string_view text);
  JsonText(const JsonText& other);
  JsonText(JsonText&& other) noexcept;
  JsonText& operator=(JsonText other) noexcept;
  ~JsonText();

  operator std::string_view() const;                            // NOLINT(google-explicit-constructor)
  operator std::string() const { return std::string(view()); }  // NOLINT(google-explicit-constructor)
  std::string_view view() const { return *this; }
  bool empty() const { return view().empty(); }
  /// Memory beyond the object itself.
  size_t bytes() const;

 private:
  friend class Json;
  // First byte: the length of a text in the bytes behind it, or kLong: a pointer in the last eight. Json has
  // further marks for its other values, whose eight bytes it owns.
  static constexpr unsigned char kLong = 16;
  alignas(8) unsigned char bytes_[16] = {};
};

std::ostream& operator<<(std::ostream& out, const JsonText& text);
inline bool operator==(const JsonText& a, std::string_view b) { return a.view() == b; }

class Json {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };

  Json() : Json(kNull, int64_t{0}) {}
  Json(std::nullptr_t) : Json() {}
  template <std::same_as<bool> T>
  Json(T value) : Json(kBoolean, int64_t{value}) {}
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Json(T value)
      : Json(kInteger, checked_integer(value)) {}
  Json(double value) : Json(kNumber, std::bit_cast<int64_t>(value)) {}
  /// Kept as the shortest decimal that reads back as this float: 3e-4f is written 0.0003.
  Json(float value);
  Json(const char* value) : Json(std::string_view(value)) {}
  Json(const std::string& value) : Json(std::string_view(value)) {}
  Json(std::string_view value) : slot_(value) {}
  Json(const JsonText& value) : slot_(value) {}
  Json(std::vector<Json> items);
  static Json array() { return {kArray, 0}; }
  static Json object() { return {kObject, 0}; }
  static Json object(std::initializer_list<JsonMember> members);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  /// RFC 8259 and no more: UTF-8 without byte order mark; no comments, trailing commas, NaN or Infinity;
  /// duplicate keys and numbers beyond a double are errors. `where` opens every message, usually a file name.
  /// Integers within int64 are exact; larger ones become numbers.
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
  std::string as_string() const;
  std::span<const Json> items() const;
  /// In the order they came.
  std::span<const JsonMember> members() const;

  /// Elements of an array, members of an object; 0 for everything else.
  size_t size() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Null if there is no such member, or this is not an object. Takes the same time whatever the keys are.
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
  enum Mark : unsigned char { kNull = JsonText::kLong + 1, kBoolean, kInteger, kNumber, kArray, kObject };

  Json(Mark mark, int64_t payload);
  unsigned char mark() const { return slot_.bytes_[0]; }
  template <class T>
  T payload() const {
    T value;
    std::memcpy(&value, slot_.bytes_ + 8, sizeof value);
    return value;
  }
  template <class List>
  const List& list() const {
    return *std::launder(reinterpret_cast<const List*>(slot_.bytes_ + 8));
  }
  template <class List>
  List& list() {
    return *std::launder(reinterpret_cast<List*>(slot_.bytes_ + 8));
  }
  void become(Mark mark);
  /// The new value, or null if the key is there already.
  Json* insert(std::string_view key);
  /// Gives back memory that further elements would have taken.
  void fit();

  template <std::integral T>
  static int64_t checked_integer(T value) {
    if constexpr (std::unsigned_integral<T>) return checked_unsigned(value);
    return static_cast<int64_t>(value);
  }
  static int64_t checked_unsigned(uint64_t value);  // ValueError past 2^63

  JsonText slot_;
};

struct JsonMember {
  JsonMember(std::string_view name, Json content) : key(name), value(std::move(content)) {}
  JsonText key;
  Json value;
};

/// JSON has no NaN or Inf: null stands for both.
Json number_or_null(double x);
/// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
std::string_view name(Json::Kind kind);
std::ostream& operator<<(std::ostream& out, const Json& json);

/// Text as one line of a terminal may show it: control characters (C0, C1, DEL), those that turn the
/// direction of writing, and bytes outside UTF-8 are escaped, so that a name from a file cannot forge a line,
/// move the cursor or hide what follows.
std::string printable(std::string_view text);
/// The same in double quotes for messages, cut after `limit` bytes.
std::string quote(std::string_view text, size_t limit = 80);
/// Length of the UTF-8 sequence at `text[at]`, or 0 if it is none (RFC 3629: no surrogates, no long forms).
size_t utf8_sequence(std::string_view text, size_t at);

}  // namespace multihead
