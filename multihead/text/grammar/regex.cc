#include <algorithm>
#include <string>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/grammar/regex-inl.h"

namespace multihead::text::grammar {
namespace {

constexpr int kDeepestRegex = 100;

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Reader {
 public:
  Reader(std::string_view source, size_t& at, const char* who) : source_(source), at_(at), who_(who) {}

  bool ends() const { return at_ >= source_.size(); }
  char peek() const { return ends() ? '\0' : source_[at_]; }
  bool take(char c) {
    if (ends() || source_[at_] != c) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw ValueError(concat(who_, ": ", why, ", at byte ", at_, " of ", quote(source_)));
  }
  int32_t character() {
    if (ends()) fail("it ends too early");
    const Utf8Char c = decode_utf8(source_, at_);
    if (c.code_point < 0) fail("it is not UTF-8");
    at_ += static_cast<size_t>(c.length);
    return c.code_point;
  }
  std::string_view rest() const { return source_.substr(std::min(at_, source_.size())); }

  // The set behind a backslash.
  CharSet escape() {
    const int32_t c = character();
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (peek() >= '0' && peek() <= '9') fail("\\0 before a digit is not supported; write \\x07 for \\07");
        return one(0);
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode());
      case 'U':  // of grammars alone
        if (std::string_view(who_) == "grammar") return one(unicode_of_eight());
        break;
      default:
        break;
    }
    const bool is_letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter) fail(concat("\\", static_cast<char>(c), " is not supported"));
    return one(c);
  }

 private:
  static CharSet one(int32_t c) { return {{c, c}}; }
  int32_t hex(int digits) {
    int32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const int32_t c = character();
      const int32_t digit = c >= '0' && c <= '9'   ? c - '0'
                            : c >= 'a' && c <= 'f' ? c - 'a' + 10
                            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                   : -1;
      if (digit < 0) fail("an escape lacks hexadecimal digits");
      value = value * 16 + digit;
    }
    return value;
  }
  int32_t unicode_of_eight() {
    const int32_t high = hex(2), low = hex(6);
    if (high != 0 || low > kLastCodePoint) fail("there is no such character");
    return low;
  }
  int32_t unicode() {
    if (!take('{')) return hex(4);
    const size_t end = source_.find('}', at_);
    if (end == std::string_view::npos || end == at_ || end - at_ > 6)
      fail("\\u{...} must hold 1 to 6 digits");
    const int32_t value = hex(static_cast<int>(end - at_));
    ++at_;
    if (value > kLastCodePoint) fail("there is no such character");
    return value;
  }

  std::string_view source_;
  size_t& at_;
  const char* who_;
};

class RegexParser {
 public:
  explicit RegexParser(std::string_view source) : source_(source), in_(source, at_, "regex") {}

  Pattern parse() {
    Pattern all = alternatives(0);
    if (!in_.ends()) in_.fail("\")\" without \"(\"");
    return all;
  }

 private:
  Pattern alternatives(int depth) {
    if (depth > kDeepestRegex) in_.fail("groups are nested too deeply");
    Pattern all = {.kind = Pattern::Kind::alternatives};
    all.parts.push_back(sequence(depth));
    while (in_.take('|')) all.parts.push_back(sequence(depth));
    if (all.parts.size() > 1) return all;
    Pattern only = std::move(all.parts.front());
    return only;
  }

  Pattern sequence(int depth) {
    Pattern list;
    while (!in_.ends() && in_.peek() != '|' && in_.peek() != ')') list.parts.push_back(repeated(depth));
    return list;
  }

  Pattern repeated(int depth) {
    Pattern part = atom(depth);
    const bool is_edge = part.kind == Pattern::Kind::begin || part.kind == Pattern::Kind::end;
    int32_t least = 0, most = -1;
    if (in_.take('*')) {
    } else if (in_.take('+')) {
      least = 1;
    } else if (in_.take('?')) {
      most = 1;
    } else if (in_.take('{')) {
      std::tie(least, most) = parse_bounds(source_, at_, "regex");
    } else {
      return part;
    }
    in_.take('?');  // a lazy one gives the same texts
    if (is_edge) in_.fail("\"^\" and \"$\" cannot be repeated");
    if (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?' || in_.peek() == '{')
      in_.fail("nothing to repeat");
    return Pattern::repeated(std::move(part), least, most);
  }

  Pattern group(int depth) {
    if (in_.take('?')) {
      const bool is_named =
          in_.rest().starts_with("<") && !in_.rest().starts_with("<=") && !in_.rest().starts_with("<!");
      if (is_named) {
        const size_t end = source_.find('>', at_);
        if (end == std::string_view::npos) in_.fail("a group's name does not end");
        at_ = end + 1;
      } else if (!in_.take(':')) {
        in_.fail("look-around and flags are not supported");
      }
    }
    Pattern inner = alternatives(depth + 1);
    if (!in_.take(')')) in_.fail("\"(\" without \")\"");
    return inner;
  }

  Pattern atom(int depth) {
    switch (in_.peek()) {
      case '(':
        in_.take('(');
        return group(depth);
      case '[':
        in_.take('[');
        return Pattern::of(parse_class(source_, at_, "regex"));
      case '.':
        in_.take('.');
        return Pattern::of(complement(kLineEnds));
      case '^':
        in_.take('^');
        return {.kind = Pattern::Kind::begin};
      case '$':
        in_.take('$');
        return {.kind = Pattern::Kind::end};
      case '\\':
        in_.take('\\');
        return Pattern::of(in_.escape());
      case '*':
      case '+':
      case '?':
      case '{':
        in_.fail("nothing to repeat");
      default:
        break;
    }
    const int32_t c = in_.character();
    return Pattern::of({{c, c}});
  }

  std::string_view source_;
  size_t at_ = 0;
  Reader in_;
};

}  // namespace

CharSet parse_class(std::string_view source, size_t& at, const char* who) {
  Reader in(source, at, who);
  const bool is_negated = in.take('^');
  CharSet set;
  while (!in.take(']')) {
    if (in.ends()) in.fail("\"[\" without \"]\"");
    const auto item = [&]() -> CharSet {
      if (!in.take('\\')) {
        const int32_t c = in.character();
        return {{c, c}};
      }
      if (in.take('b')) return {{'\b', '\b'}};
      return in.escape();
    };
    const CharSet first = item();
    const bool is_range = in.rest().size() > 1 && in.rest()[0] == '-' && in.rest()[1] != ']';
    if (!is_range) {
      set.insert(set.end(), first.begin(), first.end());
      continue;
    }
    in.take('-');
    const CharSet last = item();
    const auto is_one = [](const CharSet& s) { return s.size() == 1 && s[0].first == s[0].second; };
    if (!is_one(first) || !is_one(last)) {  // [\w-.]: a hyphen
      set.insert(set.end(), first.begin(), first.end());
      set.insert(set.end(), last.begin(), last.end());
      set.emplace_back('-', '-');
      continue;
    }
    if (first[0].first > last[0].first) in.fail("a range of characters is in the wrong order");
    set.emplace_back(first[0].first, last[0].first);
  }
  return is_negated ? complement(set) : normalized(set);
}

CharSet parse_escape(std::string_view source, size_t& at, const char* who) {
  ++at;
  return Reader(source, at, who).escape();
}

Pattern parse_regex(std::string_view source) {
  MH_CHECK(source.size() <= 65536, ValueError, "regex: it has ", source.size(), " bytes, more than 65536");
  return RegexParser(source).parse();
}

}  // namespace multihead::text::grammar
