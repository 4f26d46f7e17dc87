// Json::parse: nlohmann's tokenizer drives a builder that is stricter than it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"

namespace multihead {
namespace {

// Tells the builder how far the tokenizer has come.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  reference operator*() const { return *at; }
  Cursor& operator++() {
    *progress = ++at;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }

  const char* at;
  const char** progress;
};

// A text of one line may be a row of a file, whose number the caller knows.
std::string place(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  const std::string_view before = text.substr(0, byte);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 == 0
  const bool has_lines = text.find('\n') != std::string_view::npos;
  return concat(has_lines ? concat("line ", line, ", ") : "", "column ", byte - line_start + 1, " (byte ",
                byte, ")");
}

// The tokenizer's words without its prefix and without the input it quotes raw.
std::string reason(const std::string& what) {
  size_t begin = what.find("] ");
  begin = begin == std::string::npos ? 0 : begin + 2;
  if (const size_t syntax = what.find("syntax error ", begin); syntax != std::string::npos) begin = syntax;
  std::string text = what.substr(begin, what.find("; last read", begin) - begin);
  if (text.find("out_of_range") != std::string::npos || what.find("number overflow") != std::string::npos)
    text = "number is too large";
  return text;
}

}  // namespace

/// Receives the tokenizer's events; returns false to stop it, with the problem in `problem`.
class JsonBuilder {
 public:
  /// `bytes`: length of the text.
  JsonBuilder(const JsonLimits& limits, size_t bytes, Json* root)
      : limits_(limits),
        memory_left_(std::max(limits.least_memory, limits.memory_factor * bytes)),
        root_(root) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_unsigned(uint64_t value) {
    return std::in_range<int64_t>(value) ? put(Json(value)) : large_integer(std::to_string(value));
  }
  // The tokenizer sends only literals with a minus here, so 0 was -0.
  bool number_integer(int64_t value) { return put(value == 0 ? Json(-0.0) : Json(value)); }
  // From the digits, because strtod obeys the locale. Up to 3.11 the tokenizer puts the locale's sign for the point, or
  // its first byte, into them.
  bool number_float(double value, const std::string& digits) {
    std::string spelled = digits;
    const size_t point = spelled.find_first_not_of("0123456789+-eE");
    if (point != std::string::npos) spelled[point] = '.';
    const char* const end = spelled.data() + spelled.size();
    const auto [stopped, error] = std::from_chars(spelled.data(), end, value);
    if (error == std::errc::result_out_of_range && std::abs(value) > 1) return fail("number is too large");
    if (stopped != end) return fail("number is not understood");
    return spelled.find_first_of(".eE") == spelled.npos ? large_integer(spelled) : put(Json(value));
  }
  bool string(std::string& value) { return put(Json(value), text_memory(value)); }
  bool binary(std::vector<uint8_t>&) { return fail("binary value"); }

  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& value) {
    if (!take(kMember + text_memory(value))) return false;
    member_ = open_.back()->insert(value);
    return member_ != nullptr || fail("duplicate key " + quote(value));
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    error_byte = position > 0 ? position - 1 : 0;
    return fail(reason(error.what()));
  }

  std::string problem;
  std::optional<size_t> error_byte;

 private:
  bool large_integer(const std::string& digits) {
    return put(Json::of_characters(Json::kDigits, digits), text_memory(digits));
  }

  bool fail(std::string text) {
    problem = std::move(text);
    return false;
  }

  // Memory of a value, a member's key with its place in the index, and a list.
  static constexpr size_t kValue = sizeof(Json), kMember = sizeof(JsonText) + 8, kList = 32;

  // More memory of a text that does not fit in place.
  static size_t text_memory(const std::string& text) { return text.size() < 16 ? 0 : text.size() + 16; }

  // Many values can be written in few bytes: what they take is bounded before it is taken.
  bool take(size_t bytes) {
    if (bytes > memory_left_) return fail("its values need too much memory for the size of the text");
    memory_left_ -= bytes;
    return true;
  }

  bool put(Json&& value, size_t more_memory = 0) {
    if (++values_ > limits_.values) return fail(concat("more than ", limits_.values, " values"));
    if (!take(kValue + more_memory)) return false;
    last_ = open_.empty() ? root_ : open_.back()->is_array() ? open_.back()->append(Json()) : member_;
    *last_ = std::move(value);
    return true;
  }

  // Addresses stay valid: a container grows only while it is the innermost open one.
  bool open(Json&& value) {
    if (static_cast<int>(open_.size()) >= limits_.depth)
      return fail(concat("nested deeper than ", limits_.depth));
    if (!put(std::move(value), kList)) return false;
    open_.push_back(last_);
    return true;
  }

  bool close() {
    open_.back()->fit();
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  size_t memory_left_;
  Json* root_;
  Json *member_ = nullptr, *last_ = nullptr;  // of the innermost object; put last
  std::vector<Json*> open_;
  size_t values_ = 0;
};

Json Json::parse(std::string_view text, std::string_view where, const JsonLimits& limits) {
  MH_CHECK(text.size() <= limits.bytes, FormatError, where, ": ", text.size(),
           " bytes of JSON, the limit is ", limits.bytes);
  MH_CHECK(!text.starts_with("\xef\xbb\xbf"), FormatError, where, ": starts with a byte order mark");
  // The tokenizer takes a NUL for the end of input and would not see what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw FormatError(concat(where, ": ", place(text, nul), ": NUL byte"));

  Json root;
  JsonBuilder builder(limits, text.size(), &root);
  const char* progress = text.data();
  const char* end = text.data() + text.size();
  const bool good =
      nlohmann::json::sax_parse(Cursor{text.data(), &progress}, Cursor{end, &progress}, &builder);
  if (!good) {
    const size_t byte = builder.error_byte.value_or(static_cast<size_t>(progress - text.data()));
    throw FormatError(concat(where, ": ", place(text, byte), ": ", builder.problem));
  }
  return root;
}

}  // namespace multihead
