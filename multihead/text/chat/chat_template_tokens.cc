// The text of a chat template in tokens, with white space taken away as trim_blocks and lstrip_blocks say.
#include <algorithm>
#include <cctype>
#include <optional>

#include "multihead/text/chat/chat_template-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

using Token = TemplateToken;

bool is_number_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_identifier(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// One kind of line break, and none at the end.
std::string normal_lines(std::string_view source) {
  std::string text;
  for (size_t at = 0; at < source.size(); ++at) {
    const bool pair = source[at] == '\r' && at + 1 < source.size() && source[at + 1] == '\n';
    if (!pair) text += source[at] == '\r' ? '\n' : source[at];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const ChatTemplate::Program& program)
      : source_(normal_lines(source)), program_(program) {}

  std::vector<Token> run() {
    bool line_begins = true;
    while (at_ < source_.size()) {
      const size_t open = find_open();
      put_text(open, line_begins);
      if (open == std::string::npos) break;
      const char kind = source_[open + 1];
      move_to(open + 2);
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) move_to(at_ + 1);
      line_begins = kind == '#' ? comment() : code(kind);
    }
    put(Token::Kind::end, "end of the template");
    return std::move(tokens_);
  }

 private:
  void put(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void move_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  size_t find_open() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  void put_text(size_t open, bool line_begins) {
    std::string_view text = std::string_view(source_).substr(at_, open - std::min(at_, open));
    if (open == std::string::npos) text = std::string_view(source_).substr(at_);
    if (open != std::string::npos) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
      if (sign == '-') {
        text = strip_back(text);
      } else if (sign != '+' && source_[open + 1] != '{') {
        const size_t line = text.rfind('\n') + 1;
        if ((line > 0 || line_begins) && strip_front(text.substr(line)).empty()) text = text.substr(0, line);
      }
    }
    if (!text.empty()) put(Token::Kind::text, std::string(text));
    move_to(open == std::string::npos ? source_.size() : open);
  }

  // Behind the tag that ends at `end`; whether a line begins there.
  bool leave_tag(size_t end, char sign, bool trims) {
    move_to(end);
    if (sign == '-') {
      move_to(source_.size() - strip_front(std::string_view(source_).substr(at_)).size());
    } else if (sign != '+' && trims && at_ < source_.size() && source_[at_] == '\n') {
      move_to(at_ + 1);
      return true;
    }
    return false;
  }

  bool comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) program_.fail(line_, "unterminated comment");
    const char sign = close > at_ ? source_[close - 1] : ' ';
    return leave_tag(close + 2, sign, true);
  }

  // {% raw %}: whether one stands here, and with it whether a line begins behind {% endraw %}.
  std::optional<bool> raw() {
    const size_t end = end_of_word("raw", at_);
    if (end == std::string::npos) return std::nullopt;
    leave_tag(end + (source_[end] == '-' || source_[end] == '+' ? 3 : 2), source_[end], false);
    for (size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      const size_t begin =
          open + 2 + (open + 2 < source_.size() && (source_[open + 2] == '-' || source_[open + 2] == '+'));
      const size_t close = end_of_word("endraw", begin);
      if (close == std::string::npos) continue;
      put_text(open, false);
      const bool is_signed = source_[close] == '-' || source_[close] == '+';
      return leave_tag(close + (is_signed ? 3 : 2), source_[close], true);
    }
    program_.fail(line_, "expected {% endraw %}");
  }

  // Where the tag ends, with its sign, that holds this word alone.
  size_t end_of_word(std::string_view word, size_t at) const {
    const auto skip = [&] {
      while (at < source_.size() && std::isspace(static_cast<unsigned char>(source_[at]))) ++at;
    };
    skip();
    if (!std::string_view(source_).substr(std::min(at, source_.size())).starts_with(word))
      return std::string::npos;
    at += word.size();
    skip();
    const std::string_view rest = std::string_view(source_).substr(at);
    return rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}") ? at
                                                                                        : std::string::npos;
  }

  bool code(char kind) {
    if (const auto line_begins = kind == '%' ? raw() : std::nullopt) return *line_begins;
    const bool output = kind == '{';
    put(output ? Token::Kind::begin_output : Token::Kind::begin_block, output ? "{{" : "{%");
    const std::string_view close = output ? "}}" : "%}";
    int open_brackets = 0;
    while (true) {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) move_to(at_ + 1);
      if (at_ == source_.size()) program_.fail(line_, "unterminated tag");
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool signed_end =
          (rest[0] == '-' || (rest[0] == '+' && !output)) && rest.substr(1).starts_with(close);
      if (open_brackets == 0 && (signed_end || rest.starts_with(close))) {
        put(output ? Token::Kind::end_output : Token::Kind::end_block, std::string(close));
        return leave_tag(at_ + close.size() + signed_end, signed_end ? rest[0] : ' ', !output);
      }
      if (rest[0] == '(' || rest[0] == '[' || rest[0] == '{') ++open_brackets;
      if (rest[0] == ')' || rest[0] == ']' || rest[0] == '}') --open_brackets;
      if (open_brackets < 0) program_.fail(line_, "unexpected ", quote(rest.substr(0, 1)));
      token(rest);
    }
  }

  void token(std::string_view rest) {
    size_t size = 0;
    if (rest[0] == '\'' || rest[0] == '"') return string();
    if (begins_identifier(rest[0])) {
      while (size < rest.size() && (begins_identifier(rest[size]) || is_number_digit(rest[size]))) ++size;
      put(Token::Kind::name, std::string(rest.substr(0, size)));
    } else if (is_number_digit(rest[0])) {
      bool fraction = false;
      while (size < rest.size() &&
             (is_number_digit(rest[size]) || (rest[size] == '.' && !fraction && size + 1 < rest.size() &&
                                              is_number_digit(rest[size + 1])))) {
        fraction = fraction || rest[size] == '.';
        ++size;
      }
      if (size > 18 || (size < rest.size() && (begins_identifier(rest[size]))))
        program_.fail(line_, "the number is not supported");
      put(fraction ? Token::Kind::number : Token::Kind::integer, std::string(rest.substr(0, size)));
    } else {
      for (const char* symbol : {"==", "!=", "<=", ">=", "//", "**"}) {
        if (rest.starts_with(symbol)) size = 2;
      }
      if (size == 0 && std::string_view("+-*/%~<>=()[]{}.,:|").find(rest[0]) != std::string_view::npos)
        size = 1;
      if (size == 0) program_.fail(line_, "unexpected ", quote(rest.substr(0, 1)));
      put(Token::Kind::symbol, std::string(rest.substr(0, size)));
    }
    move_to(at_ + size);
  }

  void string() {
    std::string text;
    const char mark = source_[at_];
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != mark; ++at) {
      if (source_[at] != '\\') {
        text += source_[at];
      } else if (++at < source_.size()) {
        at += escape(at, text);
      }
    }
    if (at >= source_.size()) program_.fail(line_, "unterminated string");
    put(Token::Kind::string, text);
    move_to(at + 1);
  }

  // Decodes what follows a backslash; returns its bytes beyond one.
  size_t escape(size_t at, std::string& text) const {
    static constexpr std::string_view kFrom = "ntr\\'\"abfv", kTo = "\n\t\r\\'\"\a\b\f\v";
    const char c = source_[at];
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) return text += kTo[known], 0;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int64_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char digit = at + i < source_.size() ? source_[at + i] : ' ';
      if (!std::isxdigit(static_cast<unsigned char>(digit)))
        program_.fail(line_, "invalid escape in a string");
      code = code * 16 + (is_number_digit(digit) ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    if (digits == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      program_.fail(line_, "the escape of ", quote({&source_[at], 1}), " in a string is not supported");
    }
    append_utf8(static_cast<int32_t>(code), text);
    return digits;
  }

  const std::string source_;
  const ChatTemplate::Program& program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

bool is_python_space(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

namespace {
bool strips(std::string_view text, size_t at, const std::string* characters) {
  const Utf8Char c = decode_utf8(text, at);
  if (characters == nullptr) return is_python_space(c.code_point);
  const std::string_view wanted = text.substr(at, static_cast<size_t>(c.length));
  for (size_t i = 0; i < characters->size(); i += static_cast<size_t>(decode_utf8(*characters, i).length)) {
    if (std::string_view(*characters).substr(i).starts_with(wanted)) return true;
  }
  return false;
}
}  // namespace

std::string_view strip_front(std::string_view text, const std::string* characters) {
  while (!text.empty() && strips(text, 0, characters))
    text.remove_prefix(static_cast<size_t>(decode_utf8(text, 0).length));
  return text;
}

std::string_view strip_back(std::string_view text, const std::string* characters) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && text.size() - last < 4 && (text[last] & 0xC0) == 0x80) --last;
    if (static_cast<size_t>(decode_utf8(text, last).length) != text.size() - last) last = text.size() - 1;
    if (!strips(text, last, characters)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<Token> template_tokens(std::string_view source, const ChatTemplate::Program& program) {
  return Lexer(source, program).run();
}

}  // namespace multihead::text
