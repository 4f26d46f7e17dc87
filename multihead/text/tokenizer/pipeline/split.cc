#include <algorithm>
#include <limits>

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

size_t gpt2_end(std::string_view text, size_t begin, int /*max_digits*/) {
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

// kWithMarks: marks count as letters and digits are apart, as in Qwen 3.5.
template <bool kWithMarks>
size_t llama3_end(std::string_view text, size_t begin, int max_digits) {
  const auto at = [&](size_t place) {
    Char c = char_at(text, place);
    if (kWithMarks && is_letter_or_mark(c)) c.kind = CharClass::letter;
    return c;
  };
  const auto skip = [&](size_t place, CharClass kind) {
    if (!kWithMarks) return skip_class(text, place, kind);
    for (Char c; place < text.size() && (c = at(place)).kind == kind;) place = c.end;
    return place;
  };
  if (const size_t length = contraction(text, begin, true)) return begin + length;
  const Char c = at(begin);
  if (c.kind == CharClass::letter) return skip(c.end, CharClass::letter);
  if (c.kind == CharClass::number) return number_end(text, c.end, kWithMarks ? 0 : max_digits - 1);
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

/// One character that kIsMatch holds for, or all up to the next.
template <bool (*kIsMatch)(const Char&)>
Stretch each_one(const SplitRule&, std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  if (kIsMatch(first)) return {first.end, true};
  return {skip_while(text, first.end, [](const Char& c) { return !kIsMatch(c); }), false};
}

/// All of a run that kIsMatch holds for, or all up to the next.
template <bool (*kIsMatch)(const Char&)>
Stretch each_run(const SplitRule&, std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  const bool matches = kIsMatch(first);
  return {skip_while(text, first.end, [&](const Char& c) { return kIsMatch(c) == matches; }), matches};
}

/// A piece that ends at kEnd(text, begin, max_digits).
template <size_t (*kEnd)(std::string_view, size_t, int)>
Stretch whole(const SplitRule& rule, std::string_view text, size_t begin) {
  return {kEnd(text, begin, rule.max_digits), true};
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
bool is_letter(const Char& c) { return c.kind == CharClass::letter; }
bool is_line_end(const Char& c) { return c.is_newline(); }
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

/// The next match that kMatchEnd finds, as the end of one that begins there, or all up to it.
template <size_t (*kMatchEnd)(std::string_view, size_t)>
Stretch match_or_rest(const SplitRule&, std::string_view text, size_t begin) {
  if (const size_t end = kMatchEnd(text, begin); end > begin) return {end, true};
  size_t at = begin;
  while (at < text.size() && kMatchEnd(text, at) == at) at = char_at(text, at).end;
  return {at, false};
}

/// A run of what kIsOf holds for, with one white space before it.
template <bool (*kIsOf)(const Char&)>
size_t spaced_run_end(std::string_view text, size_t at) {
  const Char first = char_at(text, at);
  const size_t from = is_blank(first) ? first.end : at, end = skip_while(text, from, kIsOf);
  return end > from ? end : at;
}

size_t three_digits_end(std::string_view text, size_t at) {
  const std::string_view three = text.substr(at, 3);
  return three.size() == 3 && three.find_first_not_of("0123456789") == three.npos ? at + 3 : at;
}

// White space that is more than one space.
size_t wide_blanks_end(std::string_view text, size_t at) {
  const Char first = char_at(text, at);
  if (!is_blank(first)) return at;
  const size_t end = skip_while(text, first.end, is_blank);
  return end > first.end || first.is_newline() || first.code_point == '\t' ? end : at;
}

template <size_t (*kPieceEnd)(std::string_view, const Char&, size_t)>
Stretch white_or(const SplitRule&, std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  if (is_blank(first)) return {skip_while(text, first.end, is_blank), false};
  return {kPieceEnd(text, first, begin), true};
}

bool is_word_of_rust(const Char& c) { return c.code_point >= 0 && is_word_character(c.code_point); }

// The expressions of a file are Oniguruma's. Found by comparing every code point with tokenizers 0.23.
bool is_latin_number(int32_t x) { return x == 0xB2 || x == 0xB3 || x == 0xB9 || (x >= 0xBC && x <= 0xBE); }
bool is_word_of_oniguruma(const Char& c) {
  const bool is_joiner = c.code_point == 0x200C || c.code_point == 0x200D;
  return is_latin_number(c.code_point) || (is_word_of_rust(c) && !is_joiner);
}

bool is_symbol_of_rust(const Char& c) { return !is_word_of_rust(c); }
// Its [^\w] has those numbers, too.
bool is_symbol_of_oniguruma(const Char& c) {
  return is_latin_number(c.code_point) || !is_word_of_oniguruma(c);
}

template <bool (*is_word)(const Char&), bool (*is_symbol)(const Char&)>
size_t word_end(std::string_view text, const Char& first, size_t /*begin*/) {
  const auto goes_on = is_word(first) ? is_word : is_symbol;
  return skip_while(text, first.end, [&](const Char& c) { return !is_blank(c) && goes_on(c); });
}

size_t clip_end(std::string_view text, const Char& first, size_t begin) {
  if (const size_t length = contraction(text, begin, false)) return begin + length;
  return is_number(first) ? first.end : skip_class(text, first.end, first.kind);
}

Stretch bert_stretch(const SplitRule&, std::string_view text, size_t begin) {
  const Char first = char_at(text, begin);
  if (is_blank(first) || is_mark(first)) return {first.end, is_blank(first)};
  return {skip_while(text, first.end, [](const Char& c) { return !is_blank(c) && !is_mark(c); }), false};
}

Stretch text_stretch(const SplitRule& rule, std::string_view text, size_t begin) {
  const size_t found = text.find(rule.text, begin);
  if (found == begin) return {begin + rule.text.size(), true};
  return {std::min(found, text.size()), false};
}

Stretch number_runs(const SplitRule& rule, std::string_view text, size_t begin) {
  if (!is_number(char_at(text, begin))) return each_run<is_number>(rule, text, begin);
  return {number_end(text, begin, rule.max_digits), true};
}

Stretch space_runs(const SplitRule&, std::string_view text, size_t begin) {
  const size_t end = std::min(text.find_first_not_of(' ', begin), text.size());
  if (end - begin >= 2) return {end, true};
  return {std::min(text.find("  ", begin), text.size()), false};
}

Stretch outer_spaces(const SplitRule&, std::string_view text, size_t begin) {
  const size_t end = std::min(text.find_first_not_of(' ', begin), text.size());
  if (end > begin && (begin == 0 || end == text.size())) return {end, true};
  const size_t last = text.find_last_not_of(' ') + 1;
  return {last > begin ? last : text.size(), false};
}

using Kind = SplitRule::Kind;

// The stretch of each kind that begins at a place, in the order of SplitRule::Kind.
constexpr Stretch (*kCuts[])(const SplitRule&, std::string_view, size_t) = {
    // byte pairs, digits, words
    whole<gpt2_end>, whole<llama3_end<false>>, each_one<is_digit>, each_run<is_digit>,
    white_or<word_end<is_word_of_rust, is_symbol_of_rust>>, white_or<clip_end>,
    // white space, punctuation, numbers
    each_one<is_blank>, each_run<is_blank>, each_one<is_ascii_digit>, bert_stretch, each_one<is_mark>,
    number_runs,
    // later models
    whole<gpt4o_end>, match_or_rest<deepseek_end>, each_run<is_cjk>, space_runs, outer_spaces,
    match_or_rest<wide_blanks_end>, whole<llama3_end<true>>,
    // llama.cpp's steps
    each_run<is_ggml_mark>, match_or_rest<three_digits_end>, each_one<is_line_end>,
    match_or_rest<spaced_run_end<is_letter>>, match_or_rest<spaced_run_end<is_unicode_mark>>,
    each_run<is_cjk_or_korean>,
    // not by a regular expression
    text_stretch,
    // later ones
    white_or<word_end<is_word_of_oniguruma, is_symbol_of_oniguruma>>};
static_assert(std::size(kCuts) == static_cast<size_t>(Kind::regex_words) + 1);

struct KnownPattern {
  std::string_view regex;
  Kind kind;
  int max_digits = 3;
};

// The expressions of published tokenizers. GPT-4's possessive form matches the
// same pieces as Llama 3's.
constexpr KnownPattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Kind::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Kind::llama3, 3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
     R"(|\s*[\r\n]|\s+(?!\S)|\s+)",
     Kind::llama3, 3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Kind::llama3, 1},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Kind::qwen35},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Kind::gpt4o, 3},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Kind::deepseek},
    {"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", Kind::cjk_runs},
    {R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)", Kind::clip},
    // As transformers 5 writes it; special tokens are found before a text is cut.
    {R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)",
     Kind::clip},
    {R"(\w+|[^\w\s]+)", Kind::regex_words},
    {" {2,}", Kind::space_runs},
    {R"(\A +| +\z)", Kind::outer_spaces},
    {R"(\s{2,}|[\n\r\t])", Kind::wide_blanks},
    {R"(\s)", Kind::white_space},
    {R"(\s+)", Kind::white_runs},
    {R"([0-9])", Kind::ascii_digits},
    {R"(\p{N})", Kind::number_runs, 1},
    {R"(\p{N}{1,3})", Kind::number_runs, 3},
    {R"(\p{N}+)", Kind::number_runs, std::numeric_limits<int>::max()},
    {R"([\p{P}\$\+<=>\^~\|]+)", Kind::ggml_marks},
    {R"([0-9][0-9][0-9])", Kind::three_digits},
    {R"([\r\n])", Kind::line_ends},
    {R"(\s?\p{L}+)", Kind::spaced_words},
    {R"(\s?\p{P}+)", Kind::spaced_marks},
    {"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", Kind::cjk_korean},
};

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

std::optional<SplitRule> known_pattern(std::string_view regex) {
  for (const KnownPattern& pattern : kPatterns)
    if (pattern.regex == regex) return SplitRule{.kind = pattern.kind, .max_digits = pattern.max_digits};
  return std::nullopt;
}

void each_stretch(std::string_view text, const SplitRule& rule,
                  FunctionRef<void(size_t begin, size_t end, bool is_match)> use) {
  for (size_t begin = 0; begin < text.size();) {
    const Stretch next = kCuts[static_cast<size_t>(rule.kind)](rule, text, begin);
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
