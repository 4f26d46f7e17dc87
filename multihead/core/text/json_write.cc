// Json::dump.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"

namespace multihead {
namespace {

void append_indent(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
}

void append_string(std::string& out, std::string_view text) {
  constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    MH_CHECK(c.code_point >= 0, ValueError, "json: string ", quote(text), " is not UTF-8 at byte ", at);
    const std::string_view character = text.substr(at, static_cast<size_t>(c.length));
    if (const size_t named = kNamed.find(character); named != std::string_view::npos) {
      out += {'\\', kNames[named]};
    } else if (c.code_point < 0x20 || is_terminal_control(c.code_point)) {  // what is printed is often read
      char escape[16];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c.code_point));
      out += escape;
    } else {
      out += character;
    }
    at += character.size();
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
      if (out += json.digits(); json.digits().empty()) append_double(out, json.as_double());
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

std::string Json::dump(int indent) const {
  std::string out;
  append_json(out, *this, indent, 0);
  return out;
}

}  // namespace multihead
