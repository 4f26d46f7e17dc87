#include "multihead/core/text/utf8.h"

#include <algorithm>
#include <cstdio>

namespace multihead {
namespace {

void append_escaped(std::string& out, std::string_view character, int32_t code_point) {
  constexpr std::string_view kNamed = "\n\r\t\b\f", kNames = "nrtbf";
  char escape[8];
  if (const size_t at = kNamed.find(character); at != std::string_view::npos) {
    out += {'\\', kNames[at]};
  } else if (code_point >= 0 && code_point < 0x20) {
    std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code_point));
    out += escape;
  } else {
    for (const char byte : character) {
      std::snprintf(escape, sizeof escape, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(byte)));
      out += escape;
    }
  }
}

// Appends the character at `at`, escaped if need be; returns its bytes.
size_t append_printable(std::string& out, std::string_view text, size_t at) {
  const Utf8Char c = decode_utf8(text, at);
  const std::string_view character = text.substr(at, static_cast<size_t>(c.length));
  if (c.code_point >= 0x20 && !is_terminal_control(c.code_point)) {
    out += character;
  } else {
    append_escaped(out, character, c.code_point);
  }
  return character.size();
}

}  // namespace

Utf8Char decode_utf8_slow(std::string_view text, size_t at) {
  constexpr int32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  const int32_t length = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 1) return {static_cast<int32_t>(first), 1};
  if (length == 0 || first > 0xf4 || text.size() - at < static_cast<size_t>(length)) return {-1, 1};
  int32_t code = static_cast<int32_t>(first & (0x7fu >> length));
  for (size_t i = at + 1; i < at + static_cast<size_t>(length); ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {-1, 1};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[length] || code > 0x10ffff || surrogate ? Utf8Char{-1, 1} : Utf8Char{code, length};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.code_point < 0) return at;
    at += static_cast<size_t>(c.length);
  }
  return std::string_view::npos;
}

int64_t count_utf8(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t complete_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return back < length ? text.size() - back : text.size();
  }
  return text.size();
}

namespace {

// Length of the invalid bytes at `at` that are replaced together: as many as could begin a character, at
// least one (Unicode 16, 3.9: maximal subparts), as in Python and Rust.
size_t subpart(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const int lead = byte(at), second = byte(at + 1);
  const int least = lead == 0xE0   ? 0xA0
                    : lead == 0xF0 ? 0x90
                                   : 0x80,
            most = lead == 0xED   ? 0x9F
                   : lead == 0xF4 ? 0x8F
                                  : 0xBF;
  if (lead < 0xE0 || lead > 0xF4 || second < least || second > most) return 1;
  const bool third = lead >= 0xF0 && byte(at + 2) >= 0x80 && byte(at + 2) < 0xC0;
  return third ? 3 : 2;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const size_t length = c.code_point < 0 ? subpart(text, at) : static_cast<size_t>(c.length);
    out += c.code_point < 0 ? "\xEF\xBF\xBD" : text.substr(at, length);
    at += length;
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) at += append_printable(out, text, at);
  return out;
}

std::string quote(std::string_view text, size_t limit) {
  std::string out = "\"";
  size_t at = 0;
  while (at < text.size() && at + static_cast<size_t>(decode_utf8(text, at).length) <= limit) {
    if (text[at] == '"' || text[at] == '\\') out += '\\';
    at += append_printable(out, text, at);
  }
  return out + (at < text.size() ? "…\"" : "\"");
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

bool is_terminal_control(int32_t c) {
  const bool turns = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
                     (c >= 0x2066 && c <= 0x2069);
  return (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || turns;
}

}  // namespace multihead
