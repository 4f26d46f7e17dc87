#include <algorithm>

#include "multihead/text/tokenizer/pipeline/split-inl.h"

namespace multihead::text {
namespace {

struct Char {
  int32_t code_point;
  CharClass kind;
  size_t end;  // offset past it

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

/// Symbols and the line ends after them, of an expression that may take more there.
size_t symbols_end(std::string_view text, size_t at, std::string_view behind) {
  at = skip_class(text, at, CharClass::other);
  return std::min(text.find_first_not_of(behind, at), text.size());
}

size_t white_end(std::string_view text, size_t begin) {
  const size_t line_end = newline_run_end(text, begin);
  return line_end > begin ? line_end : space_run_end(text, begin);
}

bool is_letter_or_mark(const Char& c) {
  const CharCase kind = char_case(c.code_point);
  return kind != CharCase::neither && kind != CharCase::symbol;
}

// `with_marks`: marks count as letters, as in Qwen 3.5.
size_t llama3_end(std::string_view text, size_t begin, int max_digits, bool with_marks) {
  const auto at = [&](size_t place) {
    Char c = char_at(text, place);
    if (with_marks && is_letter_or_mark(c)) c.kind = CharClass::letter;
    return c;
  };
  const auto skip = [&](size_t place, CharClass kind) {
    if (!with_marks) return skip_class(text, place, kind);
    for (Char c; place < text.size() && (c = at(place)).kind == kind;) place = c.end;
    return place;
  };
  if (const size_t length = contraction(text, begin, true)) return begin + length;
  const Char c = at(begin);
  if (c.kind == CharClass::letter) return skip(c.end, CharClass::letter);
  if (c.kind == CharClass::number) return number_end(text, c.end, max_digits - 1);
  const bool more = c.end < text.size();
  const Char next = more ? at(c.end) : c;
  if (!c.is_newline() && more && next.kind == CharClass::letter) return skip(next.end, CharClass::letter);
  if (c.is_symbol() || (c.code_point == ' ' && more && next.is_symbol())) {
    const size_t end = skip(c.end, CharClass::other);
    return std::min(text.find_first_not_of("\r\n", end), text.size());
  }
  return white_end(text, begin);
}

bool has_upper(CharCase c) { return c == CharCase::upper || c == CharCase::both; }
bool has_lower(CharCase c) { return c == CharCase::lower || c == CharCase::both; }

/// Matches GPT-4o's two kinds of words, without the optional first character.
struct CasedWord {
  size_t mixed;  // [upper both]*[lower both]+, or `begin`
  size_t upper;  // [upper both]+[lower both]*, or `begin`
};
CasedWord cased_word(std::string_view text, size_t begin) {
  size_t at = begin, last_both = begin;  // the end of the last character of the run that may be lower case
  while (at < text.size()) {
    const Char c = char_at(text, at);
    const CharCase kind = char_case(c.code_point);
    if (!has_upper(kind)) break;
    at = c.end;
    if (kind == CharCase::both) last_both = at;
  }
  size_t end = at;
  while (end < text.size()) {
    const Char c = char_at(text, end);
    if (!has_lower(char_case(c.code_point))) break;
    end = c.end;
  }
  return {end > at ? end : last_both, at > begin ? end : begin};
}

size_t gpt4o_end(std::string_view text, size_t begin, int max_digits) {
  const Char c = char_at(text, begin);
  const bool leads = !c.is_newline() && c.kind != CharClass::letter && c.kind != CharClass::number;
  const CasedWord behind = leads ? cased_word(text, c.end) : CasedWord{}, here = cased_word(text, begin);
  const size_t least_behind = leads ? c.end : text.size();
  size_t end = begin;
  if (behind.mixed > least_behind) {
    end = behind.mixed;
  } else if (here.mixed > begin) {
    end = here.mixed;
  } else if (behind.upper > least_behind) {
    end = behind.upper;
  } else if (here.upper > begin) {
    end = here.upper;
  }
  if (end > begin) return end + contraction(text, end, true);
  if (c.kind == CharClass::number) return number_end(text, c.end, max_digits - 1);
  const bool more = c.end < text.size();
  if (c.is_symbol() || (c.code_point == ' ' && more && char_at(text, c.end).is_symbol()))
    return symbols_end(text, c.end, "\r\n/");
  return white_end(text, begin);
}

// The Digits step of Hugging Face asks Rust, whose tables are a Unicode version (17) ahead of its regular
// expressions'.
bool is_digit(const Char& c) {
  return c.kind == CharClass::number || (c.code_point >= 0x11DE0 && c.code_point <= 0x11DE9) ||
         (c.code_point >= 0x16FF4 && c.code_point <= 0x16FF6);
}

// A stretch of a text, of which a rule says whether it matches.
struct Stretch {
  size_t end;
  bool is_match;
};

/// Through the last character of the run that `is_of` holds for.
template <class IsOf>
size_t skip_while(std::string_view text, size_t at, IsOf&& is_of) {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (!is_of(c)) break;
    at = c.end;
  }
  return at;
}

/// One character that `is_match` holds for, or all up to the next.
template <class IsMatch>
Stretch each_one(std::string_view text, size_t begin, IsMatch&& is_match) {
  const Char first = char_at(text, begin);
  if (is_match(first)) return {first.end, true};
  return {skip_while(text, first.end, [&](const Char& c) { return !is_match(c); }), false};
}

/// All of a run that `is_match` holds for, or all up to the next.
template <class IsMatch>
Stretch each_run(std::string_view text, size_t begin, IsMatch&& is_match) {
  const Char first = char_at(text, begin);
  const bool matches = is_match(first);
  return {skip_while(text, first.end, [&](const Char& c) { return is_match(c) == matches; }), matches};
}

bool is_ascii_letter(const Char& c) { return c.code_point < 0x80 && c.kind == CharClass::letter; }
bool is_visible_symbol(const Char& c) { return char_case(c.code_point) == CharCase::symbol; }

/// Where DeepSeek's expression ends if it matches at `begin`, else `begin`: a number or an invisible
/// character alone matches nothing.
size_t deepseek_end(std::string_view text, size_t begin) {
  const Char c = char_at(text, begin);
  const bool more = c.end < text.size(), is_symbol = is_visible_symbol(c);
  const Char next = more ? char_at(text, c.end) : c;
  if (is_symbol && c.code_point < 0x80 && more && is_ascii_letter(next))
    return skip_while(text, c.end, is_ascii_letter);
  if (is_letter_or_mark(c)) return skip_while(text, c.end, is_letter_or_mark);
  if (!c.is_newline() && !is_symbol && more && is_letter_or_mark(next))
    return skip_while(text, c.end, is_letter_or_mark);
  if (is_symbol || (c.code_point == ' ' && more && is_visible_symbol(next))) {
    const size_t end = skip_while(text, c.end, is_visible_symbol);
    return std::min(text.find_first_not_of("\r\n", end), text.size());
  }
  return c.kind == CharClass::space ? white_end(text, begin) : begin;
}

bool is_cjk(const Char& c) {
  return (c.code_point >= 0x4E00 && c.code_point <= 0x9FA5) ||
         (c.code_point >= 0x3040 && c.code_point <= 0x30FF);
}

bool is_blank(const Char& c) { return c.kind == CharClass::space; }
bool is_number(const Char& c) { return c.kind == CharClass::number; }
bool is_mark(const Char& c) { return c.code_point >= 0 && is_punctuation(c.code_point); }

bool is_ascii_digit(const Char& c) { return c.code_point >= '0' && c.code_point <= '9'; }
bool is_ggml_mark(const Char& c) { return is_mark(c) && c.code_point != '`'; }
bool is_unicode_mark(const Char& c) {  // \p{P}, to which ASCII's other signs do not belong
  constexpr std::string_view kSymbols = "$+<=>^`|~";
  return is_mark(c) &&
         !(c.code_point < 0x80 && kSymbols.find(static_cast<char>(c.code_point)) != kSymbols.npos);
}
bool is_cjk_or_korean(const Char& c) {
  return (c.code_point >= 0x0800 && c.code_point <= 0x9FA5) ||
         (c.code_point >= 0xAC00 && c.code_point <= 0xD7FF);
}

/// The next match that `match_end(at)` finds, as the end of one that begins there, or all up to it.
template <class MatchEnd>
Stretch match_or_rest(std::string_view text, size_t begin, MatchEnd&& match_end) {
  if (const size_t end = match_end(begin); end > begin) return {end, true};
  size_t at = begin;
  while (at < text.size() && match_end(at) == at) at = char_at(text, at).end;
  return {at, false};
}

/// A run of what `is_of` holds for, with one white space before it.
template <class IsOf>
Stretch spaced_run(std::string_view text, size_t begin, IsOf&& is_of) {
  return match_or_rest(text, begin, [&](size_t at) {
    const Char first = char_at(text, at);
    const size_t from = is_blank(first) ? first.end : at, end = skip_while(text, from, is_of);
    return end > from ? end : at;
  });
}

Stretch three_digits(std::string_view text, size_t begin) {
  return match_or_rest(text, begin, [&](size_t at) {
    const std::string_view three = text.substr(at, 3);
    const bool all = three.size() == 3 && three.find_first_not_of("0123456789") == three.npos;
    return all ? at + 3 : at;
  });
}

// White space that is more than one space.
Stretch wide_blanks(std::string_view text, size_t begin) {
  return match_or_rest(text, begin, [&](size_t at) {
    const Char first = char_at(text, at);
    if (!is_blank(first)) return at;
    const size_t end = skip_while(text, first.end, is_blank);
    return end > first.end || first.is_newline() || first.code_point == '\t' ? end : at;
  });
}

Stretch white_or(std::string_view text, size_t begin,
                 size_t (*piece_end)(std::string_view, const Char&, size_t)) {
  const Char first = char_at(text, begin);
  if (is_blank(first)) return {skip_while(text, first.end, is_blank), false};
  return {piece_end(text, first, begin), true};
}

size_t word_end(std::string_view text, const Char& first, size_t /*begin*/) {
  const auto is_word = [](const Char& c) { return c.code_point >= 0 && is_word_character(c.code_point); };
  const bool in_word = is_word(first);
  return skip_while(text, first.end, [&](const Char& c) { return !is_blank(c) && is_word(c) == in_word; });
}

size_t clip_end(std::string_view text, const Char& first, size_t begin) {
  if (const size_t length = contraction(text, begin, false)) return begin + length;
  return is_number(first) ? first.end : skip_class(text, first.end, first.kind);
}

Stretch bert_stretch(std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  if (is_blank(first) || is_mark(first)) return {first.end, is_blank(first)};
  return {skip_while(text, first.end, [](const Char& c) { return !is_blank(c) && !is_mark(c); }), false};
}

Stretch text_stretch(const std::string& wanted, std::string_view text, size_t begin) {
  const size_t found = text.find(wanted, begin);
  if (found == begin) return {begin + wanted.size(), true};
  return {std::min(found, text.size()), false};
}

Stretch next_stretch(const SplitRule& rule, std::string_view text, size_t begin) {
  using Kind = SplitRule::Kind;
  switch (rule.kind) {
    case Kind::gpt2:
      return {gpt2_end(text, begin), true};
    case Kind::llama3:
      return {llama3_end(text, begin, rule.max_digits, false), true};
    case Kind::qwen35:
      return {llama3_end(text, begin, 1, true), true};
    case Kind::gpt4o:
      return {gpt4o_end(text, begin, rule.max_digits), true};
    case Kind::deepseek:
      return match_or_rest(text, begin, [&](size_t at) { return deepseek_end(text, at); });
    case Kind::cjk_runs:
      return each_run(text, begin, is_cjk);
    case Kind::each_digit:
      return each_one(text, begin, is_digit);
    case Kind::digit_runs:
      return each_run(text, begin, is_digit);
    case Kind::words:
      return white_or(text, begin, word_end);
    case Kind::clip:
      return white_or(text, begin, clip_end);
    case Kind::white_space:
      return each_one(text, begin, is_blank);
    case Kind::white_runs:
      return each_run(text, begin, is_blank);
    case Kind::ascii_digits:
      return each_one(text, begin, is_ascii_digit);
    case Kind::bert:
      return bert_stretch(text, begin);
    case Kind::punctuation:
      return each_one(text, begin, is_mark);
    case Kind::number_runs:
      if (!is_number(char_at(text, begin))) return each_run(text, begin, is_number);
      return {number_end(text, begin, rule.max_digits), true};
    case Kind::space_runs: {
      const size_t end = std::min(text.find_first_not_of(' ', begin), text.size());
      return end - begin >= 2 ? Stretch{end, true}
                              : Stretch{std::min(text.find("  ", begin), text.size()), false};
    }
    case Kind::outer_spaces: {
      const size_t end = std::min(text.find_first_not_of(' ', begin), text.size());
      if (end > begin && (begin == 0 || end == text.size())) return {end, true};
      const size_t last = text.find_last_not_of(' ') + 1;
      return {last > begin ? last : text.size(), false};
    }
    case Kind::wide_blanks:
      return wide_blanks(text, begin);
    case Kind::ggml_marks:
      return each_run(text, begin, is_ggml_mark);
    case Kind::three_digits:
      return three_digits(text, begin);
    case Kind::line_ends:
      return each_one(text, begin, [](const Char& c) { return c.is_newline(); });
    case Kind::spaced_words:
      return spaced_run(text, begin, [](const Char& c) { return c.kind == CharClass::letter; });
    case Kind::spaced_marks:
      return spaced_run(text, begin, is_unicode_mark);
    case Kind::cjk_korean:
      return each_run(text, begin, is_cjk_or_korean);
    case Kind::text:
      return text_stretch(rule.text, text, begin);
  }
  return {text.size(), false};
}

// Whether a stretch goes on with the piece that is open.
bool joins(SplitRule::Behavior behavior, bool is_match, bool was_match) {
  switch (behavior) {
    case SplitRule::Behavior::contiguous:
      return is_match == was_match;
    case SplitRule::Behavior::merged_with_previous:
      return is_match && !was_match;
    case SplitRule::Behavior::merged_with_next:
      return !is_match && was_match;
    default:
      return false;
  }
}

}  // namespace

void each_stretch(std::string_view text, const SplitRule& rule,
                  FunctionRef<void(size_t begin, size_t end, bool is_match)> use) {
  for (size_t begin = 0; begin < text.size();) {
    const Stretch next = next_stretch(rule, text, begin);
    use(begin, next.end, next.is_match != rule.is_inverted);
    begin = next.end;
  }
}

void split_text(std::string_view text, const SplitRule& rule, FunctionRef<void(std::string_view)> use) {
  const bool removes = rule.behavior == SplitRule::Behavior::removed;
  bool was_match = false;
  size_t open = 0;  // where the piece begins that may still grow
  each_stretch(text, rule, [&](size_t begin, size_t end, bool is_match) {
    if (!joins(rule.behavior, is_match, was_match)) {
      if (begin > open) use(text.substr(open, begin - open));
      open = removes && is_match ? end : begin;
    }
    was_match = is_match;
  });
  if (text.size() > open) use(text.substr(open));
}

void split_text(std::string_view text, std::span<const SplitRule> rules,
                FunctionRef<void(std::string_view)> use) {
  if (rules.empty()) {
    if (!text.empty()) use(text);
  } else if (rules.size() == 1) {
    split_text(text, rules[0], use);
  } else {
    split_text(text, rules[0], [&](std::string_view piece) { split_text(piece, rules.subspan(1), use); });
  }
}

}  // namespace multihead::text
