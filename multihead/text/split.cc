#include "multihead/text/split-inl.h"

namespace multihead::text {
namespace {

struct Char {
  int32_t code_point;
  CharClass kind;
  size_t end;  // offset behind it

  bool is_newline() const { return code_point == '\n' || code_point == '\r'; }
  bool is_symbol() const { return kind == CharClass::other; }
};

Char char_at(std::string_view text, size_t at) {
  const Utf8Char c = decode_utf8(text, at);
  return {c.code_point, char_class(c.code_point), at + c.length};
}

size_t skip_class(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (c.kind != kind) break;
    at = c.end;
  }
  return at;
}

/// Length of 's 't 'm 'd 're 've 'll at `at`, or 0. Ignoring case, 's also matches the long s (U+017F).
size_t contraction(std::string_view text, size_t at, bool any_case) {
  const std::string_view rest = text.substr(at, 3);
  if (rest.size() < 2 || rest[0] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char c = i < rest.size() ? rest[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (any_case && rest == "'\xC5\xBF") return 3;
  return 0;
}

/// \s+(?!\S)|\s+ : a run of white space leaves its last character to what follows.
size_t space_run_end(std::string_view text, size_t begin) {
  size_t last = begin, at = begin;
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (c.kind != CharClass::space) return last > begin ? last : at;
    last = at;
    at = c.end;
  }
  return at;
}

size_t gpt2_end(std::string_view text, size_t begin) {
  if (const size_t length = contraction(text, begin, false)) return begin + length;
  Char c = char_at(text, begin);
  if (c.code_point == ' ' && c.end < text.size()) {
    const Char next = char_at(text, c.end);
    if (next.kind != CharClass::space) c = next;
  }
  if (c.kind == CharClass::space) return space_run_end(text, begin);
  return skip_class(text, c.end, c.kind);
}

/// \s*[\r\n]+ : through the last line end of the run of white space at `begin`, or `begin` if it has none.
size_t newline_run_end(std::string_view text, size_t begin) {
  size_t end = begin;
  for (size_t at = begin; at < text.size();) {
    const Char c = char_at(text, at);
    if (c.kind != CharClass::space) break;
    at = c.end;
    if (c.is_newline()) end = at;
  }
  return end;
}

size_t number_end(std::string_view text, size_t at, int left) {
  for (; left > 0 && at < text.size(); --left) {
    const Char c = char_at(text, at);
    if (c.kind != CharClass::number) break;
    at = c.end;
  }
  return at;
}

size_t llama3_end(std::string_view text, size_t begin, int max_digits) {
  if (const size_t length = contraction(text, begin, true)) return begin + length;
  const Char c = char_at(text, begin);
  if (c.kind == CharClass::letter) return skip_class(text, c.end, CharClass::letter);
  if (c.kind == CharClass::number) return number_end(text, c.end, max_digits - 1);
  const bool more = c.end < text.size();
  const Char next = more ? char_at(text, c.end) : c;
  if (!c.is_newline() && more && next.kind == CharClass::letter)
    return skip_class(text, next.end, CharClass::letter);
  if (c.is_symbol() || (c.code_point == ' ' && more && next.is_symbol())) {
    size_t at = skip_class(text, c.end, CharClass::other);
    while (at < text.size() && (text[at] == '\r' || text[at] == '\n')) ++at;
    return at;
  }
  const size_t line_end = newline_run_end(text, begin);
  return line_end > begin ? line_end : space_run_end(text, begin);
}

// The Digits step of Hugging Face asks Rust, whose tables are a Unicode version (17) ahead of its regular
// expressions'.
bool is_digit(const Char& c) {
  return c.kind == CharClass::number || (c.code_point >= 0x11DE0 && c.code_point <= 0x11DE9) ||
         (c.code_point >= 0x16FF4 && c.code_point <= 0x16FF6);
}

size_t digits_end(std::string_view text, size_t begin, bool each) {
  const Char first = char_at(text, begin);
  const bool digits = is_digit(first);
  if (digits && each) return first.end;
  size_t at = first.end;
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (is_digit(c) != digits) break;
    at = c.end;
  }
  return at;
}

}  // namespace

size_t piece_end(const SplitRule& rule, std::string_view text, size_t begin) {
  switch (rule.kind) {
    case SplitRule::Kind::gpt2:
      return gpt2_end(text, begin);
    case SplitRule::Kind::llama3:
      return llama3_end(text, begin, rule.max_digits);
    case SplitRule::Kind::each_digit:
      return digits_end(text, begin, true);
    case SplitRule::Kind::digit_runs:
      return digits_end(text, begin, false);
  }
  return text.size();
}

void split_text(std::string_view text, std::span<const SplitRule> rules,
                FunctionRef<void(std::string_view)> use) {
  if (rules.empty()) {
    if (!text.empty()) use(text);
    return;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(rules[0], text, begin);
    const std::string_view piece = text.substr(begin, end - begin);
    if (rules.size() == 1) {
      use(piece);
    } else {
      split_text(piece, rules.subspan(1), use);
    }
    begin = end;
  }
}

}  // namespace multihead::text
