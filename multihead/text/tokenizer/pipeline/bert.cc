#include "multihead/text/tokenizer/pipeline/bert-inl.h"

#include <utf8proc.h>

#include "multihead/text/tokenizer/pipeline/normalize-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

// Hugging Face's tokenizers know the categories of Unicode 8. These became marks, punctuation or format
// characters since; found by comparing every code point with tokenizers 0.23.
constexpr CodePoints kLaterMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8E1},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
    {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
    {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x180F},   {0x1885, 0x1886},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},
    {0xA9BD, 0xA9BD},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x111C9, 0x111C9},
    {0x111CF, 0x111CF}, {0x1123E, 0x1123E}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1143F},
    {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1145E, 0x1145E}, {0x1182F, 0x11837}, {0x11839, 0x1183A},
    {0x1193B, 0x1193C}, {0x1193E, 0x1193E}, {0x11943, 0x11943}, {0x119D4, 0x119D7}, {0x119DA, 0x119DB},
    {0x119E0, 0x119E0}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A38}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47},
    {0x11A51, 0x11A56}, {0x11A59, 0x11A5B}, {0x11A8A, 0x11A96}, {0x11A98, 0x11A99}, {0x11C30, 0x11C36},
    {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F}, {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3},
    {0x11CB5, 0x11CB6}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45},
    {0x11D47, 0x11D47}, {0x11D90, 0x11D91}, {0x11D95, 0x11D95}, {0x11D97, 0x11D97}, {0x11EF3, 0x11EF4},
    {0x11F00, 0x11F01}, {0x11F36, 0x11F3A}, {0x11F40, 0x11F40}, {0x11F42, 0x11F42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46},
    {0x1E000, 0x1E006}, {0x1E008, 0x1E018}, {0x1E01B, 0x1E021}, {0x1E023, 0x1E024}, {0x1E026, 0x1E02A},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E944, 0x1E94A}};
constexpr CodePoints kLaterFormat[] = {
    {0x890, 0x891}, {0x8E2, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};

constexpr CodePoints kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                      {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                      {0x2F800, 0x2FA1F}};

bool is_space(int32_t c) { return char_class(c) == CharClass::space; }

bool is_control(int32_t c) {
  if (c == 0 || c == 0xFFFD) return true;
  const utf8proc_category_t category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_CC && category <= UTF8PROC_CATEGORY_CO && !contains(kLaterFormat, c);
}

// A few characters have changed their category.
bool is_accent(int32_t c) {
  return c == 0x1734 || (utf8proc_category(c) == UTF8PROC_CATEGORY_MN && !contains(kLaterMarks, c));
}

// Letters with case since Unicode 15, which utf8proc 2.8 does not know.
int32_t lower_case(int32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    default:
      return utf8proc_tolower(c);
  }
}

std::string lower(int32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c));
  std::string out;
  append_utf8(c == 0x130 ? 'i' : lower_case(c), out);
  if (c == 0x130) append_utf8(0x307, out);  // the dot stays
  return out;
}

// Calls use(code point, begin, end) on every character; -1 for an invalid byte.
template <class Use>
void each_character(std::string_view text, Use&& use) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    use(c.code_point, at, at + static_cast<size_t>(c.length));
    at += static_cast<size_t>(c.length);
  }
}

// Tabs and line ends are control characters by category, but white space here.
void clean(const BertCleaning& cleaning, std::string_view text, Rewritten& out) {
  const bool cleans = cleaning.clean_text;
  out.text.reserve(text.size());
  each_character(text, [&](int32_t c, size_t begin, size_t end) {
    if (cleans && c < 0) return;
    if (cleans && c != '\t' && c != '\n' && c != '\r' && is_control(c)) return;
    if (cleans && is_space(c)) {
      out.put(" ", begin);
    } else if (cleaning.handle_chinese_chars && contains(kIdeographs, c)) {
      out.put(" ", begin);
      out.copy(text, begin, end);
      out.put(" ", begin);
    } else {
      out.copy(text, begin, end);
    }
  });
}

void strip_and_lower(const BertCleaning& cleaning, std::string_view text, Rewritten& out) {
  out.text.reserve(text.size());
  each_character(text, [&](int32_t c, size_t begin, size_t end) {
    if (c < 0) {
      out.copy(text, begin, end);
    } else if (cleaning.strip_accents && c >= 0x80 && is_accent(c)) {
      return;
    } else if (cleaning.lowercase) {
      out.put(lower(c), begin);
    } else {
      out.copy(text, begin, end);
    }
  });
}

}  // namespace

void bert_cleaned(const BertCleaning& cleaning, std::string_view text, Rewritten& out) {
  Rewritten now(out.is_aligned());
  clean(cleaning, text, now);
  if (cleaning.strip_accents) {
    if (std::optional<Rewritten> decomposed = normalized(Normalizer::nfd, now.text, now.is_aligned())) {
      decomposed->follow(now);
      now = std::move(*decomposed);
    }
  }
  if (cleaning.strip_accents || cleaning.lowercase) {
    Rewritten rest(out.is_aligned());
    strip_and_lower(cleaning, now.text, rest);
    rest.follow(now);
    now = std::move(rest);
  }
  out = std::move(now);
}

void bert_lowercase(std::string_view text, Rewritten& out) {
  each_character(text, [&](int32_t c, size_t begin, size_t end) {
    c < 0 ? out.copy(text, begin, end) : out.put(lower(c), begin);
  });
}

}  // namespace multihead::text
