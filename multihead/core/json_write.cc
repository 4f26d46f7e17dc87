// Text out of JSON values, and any text as a terminal may be given it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "multihead/core/error.h"
#include "multihead/core/json.h"

namespace multihead {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_indent(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
}

void append_escape(std::string& out, unsigned char byte) {
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

// What a terminal obeys instead of showing it, besides the bytes below 0x20: DEL, C1, marks of the direction
// of writing, line and paragraph separators. 0 if the character at `at` is none, else its code point.
unsigned terminal_control(std::string_view text, size_t at, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned code = length == 1 ? byte(0) : 0;
  if (length == 2) code = (byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu);
  if (length == 3) code = (byte(0) & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
  const bool turns = code == 0x61c || code == 0x200e || code == 0x200f ||
                     (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  const bool obeyed = (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || turns;
  return obeyed ? code : 0;
}

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
    if (const unsigned code = terminal_control(text, i, length)) {  // what is printed is often read
      char escape[16];
      std::snprintf(escape, sizeof escape, "\\u%04x", code);
      out += escape;
    } else {
      out.append(text, i, length);
    }
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

// Appends the character at `at`, escaped if need be; returns its bytes.
size_t append_printable(std::string& out, std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  const size_t length = utf8_sequence(text, at);
  if (byte < 0x20) {
    append_escape(out, byte);
  } else if (length > 0 && terminal_control(text, at, length) == 0) {
    out.append(text, at, length);
  } else {
    for (size_t k = at; k < at + std::max<size_t>(length, 1); ++k) {
      const auto bad = static_cast<unsigned char>(text[k]);
      out += "\\x";
      out += kHex[bad >> 4];
      out += kHex[bad & 15];
    }
  }
  return std::max<size_t>(length, 1);
}

}  // namespace

std::string Json::dump(int indent) const {
  std::string out;
  append_json(out, *this, indent, 0);
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) i += append_printable(out, text, i);
  return out;
}

std::string quote(std::string_view text, size_t limit) {
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size() && i + utf8_sequence(text, i) <= limit) {
    if (text[i] == '"' || text[i] == '\\') out += '\\';
    i += append_printable(out, text, i);
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
