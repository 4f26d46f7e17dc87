#include "multihead/core/json.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>

#include "multihead/core/error.h"

namespace multihead {
namespace {

// Below this a scan over the keys is faster than the index, and most objects are small.
constexpr size_t kIndexedFrom = 16;

void append_indent(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
}

void append_escape(std::string& out, unsigned char byte) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (byte) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
  }
}

bool needs_escape(unsigned char byte) { return byte < 0x20 || byte == '"' || byte == '\\'; }

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (needs_escape(byte)) {
      append_escape(out, byte);
      ++i;
      continue;
    }
    const size_t length = utf8_sequence(text, i);
    MH_CHECK(length > 0, ValueError, "json: string ", quote(text), " is not UTF-8 at byte ", i);
    out.append(text, i, length);
    i += length;
  }
  out += '"';
}

void append_double(std::string& out, double value) {
  MH_CHECK(std::isfinite(value), ValueError, "json: cannot write ", value, ", numbers must be finite");
  // Python's rule for when an exponent is used; the digits are the fewest that read back as this double.
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value,
                                          fixed ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string_view digits(buffer, static_cast<size_t>(end - buffer));
  out += digits;
  // A number stays a number when it is read again.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_json(std::string& out, const Json& json, int indent, int depth);

template <class Range, class WriteOne>
void append_list(std::string& out, const Range& range, char open, char close, int indent, int depth,
                 WriteOne&& write_one) {
  out += open;
  bool first = true;
  for (const auto& element : range) {
    if (!first) out += ',';
    first = false;
    append_indent(out, indent, depth + 1);
    write_one(element);
  }
  if (!first) append_indent(out, indent, depth);
  out += close;
}

void append_json(std::string& out, const Json& json, int indent, int depth) {
  switch (json.kind()) {
    case Json::Kind::null:
      out += "null";
      break;
    case Json::Kind::boolean:
      out += json.as_bool() ? "true" : "false";
      break;
    case Json::Kind::integer:
      out += std::to_string(json.as_int());
      break;
    case Json::Kind::number:
      append_double(out, json.as_double());
      break;
    case Json::Kind::string:
      append_string(out, json.as_string());
      break;
    case Json::Kind::array:
      append_list(out, json.items(), '[', ']', indent, depth,
                  [&](const Json& item) { append_json(out, item, indent, depth + 1); });
      break;
    case Json::Kind::object:
      append_list(out, json.members(), '{', '}', indent, depth, [&](const JsonMember& member) {
        append_string(out, member.key);
        out += indent < 0 ? ":" : ": ";
        append_json(out, member.value, indent, depth + 1);
      });
      break;
  }
}

}  // namespace

JsonObject::JsonObject() = default;
JsonObject::JsonObject(JsonObject&&) noexcept = default;
JsonObject& JsonObject::operator=(JsonObject&&) noexcept = default;
JsonObject::~JsonObject() = default;

JsonObject::JsonObject(const JsonObject& other) : members_(other.members_) {
  if (other.index_ != nullptr) index_ = std::make_unique<Index>(*other.index_);
}

JsonObject& JsonObject::operator=(const JsonObject& other) {
  // By way of a copy, because `other` may lie inside this object.
  JsonObject copy(other);
  *this = std::move(copy);
  return *this;
}

size_t JsonObject::position(std::string_view key) const {
  if (index_ != nullptr) {
    const auto it = index_->find(key);
    return it == index_->end() ? members_.size() : it->second;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].key == key) return i;
  }
  return members_.size();
}

const Json* JsonObject::find(std::string_view key) const {
  const size_t at = position(key);
  return at < members_.size() ? &members_[at].value : nullptr;
}

Json* JsonObject::find(std::string_view key) {
  const size_t at = position(key);
  return at < members_.size() ? &members_[at].value : nullptr;
}

Json* JsonObject::insert(std::string key) {
  if (position(key) < members_.size()) return nullptr;
  if (index_ != nullptr) index_->emplace(key, members_.size());
  members_.push_back({std::move(key), Json()});
  if (index_ == nullptr && members_.size() >= kIndexedFrom) build_index();
  return &members_.back().value;
}

bool JsonObject::erase(std::string_view key) {
  const size_t at = position(key);
  if (at == members_.size()) return false;
  members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(at));
  if (index_ != nullptr) build_index();
  return true;
}

void JsonObject::build_index() {
  index_ = std::make_unique<Index>();
  for (size_t i = 0; i < members_.size(); ++i) index_->emplace(members_[i].key, i);
}

Json::Json(float value) : value_(static_cast<double>(value)) {
  if (!std::isfinite(value)) return;
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  double decimal = 0;
  std::from_chars(buffer, end, decimal);
  value_ = decimal;
}

Json Json::object(std::initializer_list<JsonMember> members) {
  Json json = object();
  for (const JsonMember& member : members) json[member.key] = member.value;
  return json;
}

int64_t Json::checked_unsigned(uint64_t value) {
  MH_CHECK(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), ValueError, "json: integer ",
           value, " does not fit 63 bits");
  return static_cast<int64_t>(value);
}

std::string Json::dump(int indent) const {
  std::string out;
  append_json(out, *this, indent, 0);
  return out;
}

bool Json::as_bool() const {
  MH_CHECK(is_bool(), FormatError, "json: expected a boolean, got ", name(kind()));
  return std::get<bool>(value_);
}

int64_t Json::as_int() const {
  MH_CHECK(is_integer(), FormatError, "json: expected an integer, got ", name(kind()));
  return std::get<int64_t>(value_);
}

double Json::as_double() const {
  MH_CHECK(is_number(), FormatError, "json: expected a number, got ", name(kind()));
  return is_integer() ? static_cast<double>(std::get<int64_t>(value_)) : std::get<double>(value_);
}

const std::string& Json::as_string() const {
  MH_CHECK(is_string(), FormatError, "json: expected a string, got ", name(kind()));
  return std::get<std::string>(value_);
}

const std::vector<Json>& Json::items() const {
  MH_CHECK(is_array(), FormatError, "json: expected an array, got ", name(kind()));
  return std::get<std::vector<Json>>(value_);
}

std::vector<Json>& Json::items() {
  MH_CHECK(is_array(), FormatError, "json: expected an array, got ", name(kind()));
  return std::get<std::vector<Json>>(value_);
}

const std::vector<JsonMember>& Json::members() const {
  MH_CHECK(is_object(), FormatError, "json: expected an object, got ", name(kind()));
  return std::get<JsonObject>(value_).members();
}

size_t Json::size() const { return is_array() ? items().size() : is_object() ? members().size() : 0; }

const Json* Json::find(std::string_view key) const {
  const auto* object = std::get_if<JsonObject>(&value_);
  return object == nullptr ? nullptr : object->find(key);
}

const Json& Json::at(std::string_view key) const {
  MH_CHECK(is_object(), FormatError, "json: expected an object with ", quote(key), ", got ", name(kind()));
  const Json* value = find(key);
  MH_CHECK(value != nullptr, FormatError, "json: no member ", quote(key));
  return *value;
}

const Json& Json::at(size_t index) const {
  MH_CHECK(index < items().size(), FormatError, "json: index ", index, " past the end of an array of ",
           items().size());
  return items()[index];
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = JsonObject();
  MH_CHECK(is_object(), FormatError, "json: expected an object to hold ", quote(key), ", got ", name(kind()));
  auto& object = std::get<JsonObject>(value_);
  Json* value = object.find(key);
  return value != nullptr ? *value : *object.insert(std::string(key));
}

bool Json::erase(std::string_view key) {
  auto* object = std::get_if<JsonObject>(&value_);
  return object != nullptr && object->erase(key);
}

void Json::push_back(Json value) {
  if (is_null()) value_ = std::vector<Json>();
  items().push_back(std::move(value));
}

bool Json::operator==(const Json& other) const {
  if (kind() != other.kind()) return false;
  if (is_object()) {
    if (size() != other.size()) return false;
    for (const JsonMember& member : members()) {
      const Json* theirs = other.find(member.key);
      if (theirs == nullptr || !(member.value == *theirs)) return false;
    }
    return true;
  }
  switch (kind()) {
    case Kind::boolean:
      return as_bool() == other.as_bool();
    case Kind::integer:
      return as_int() == other.as_int();
    case Kind::number:
      return as_double() == other.as_double();
    case Kind::string:
      return as_string() == other.as_string();
    case Kind::array:
      return items() == other.items();
    default:
      return true;
  }
}

std::string_view name(Json::Kind kind) {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[static_cast<size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

std::string quote(std::string_view text, size_t limit) {
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_sequence(text, i);
    if (i + length > limit) break;
    // U+0080..U+009F are control characters too (terminals obey them).
    const bool control =
        byte == 0x7f || (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (needs_escape(byte)) {
      append_escape(out, byte);
    } else if (length == 0 || control) {
      constexpr char kHex[] = "0123456789abcdef";
      for (size_t k = i; k < i + std::max<size_t>(length, 1); ++k) {
        const auto bad = static_cast<unsigned char>(text[k]);
        out += "\\x";
        out += kHex[bad >> 4];
        out += kHex[bad & 15];
      }
    } else {
      out.append(text, i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  if (i < text.size()) out += "…";
  return out + "\"";
}

size_t utf8_sequence(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(at);
  if (at >= text.size()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(at + 1) ? 2 : 0;
  if ((first & 0xf0) == 0xe0) {
    const unsigned second = byte(at + 1);
    if (!follows(at + 1) || !follows(at + 2)) return 0;
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const unsigned second = byte(at + 1);
    if (!follows(at + 1) || !follows(at + 2) || !follows(at + 3)) return 0;
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
    return 4;
  }
  return 0;
}

}  // namespace multihead
