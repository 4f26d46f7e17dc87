#include "multihead/text/tokenizer/pipeline/pipeline-inl.h"

#include <utf8proc.h>

#include "multihead/text/tokenizer/pipeline/bert-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

bool is_white(int32_t c) { return c >= 0 && char_class(c) == CharClass::space; }

std::string_view stripped(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Char c = decode_utf8(text, begin);
    if (!is_white(c.code_point)) break;
    begin += static_cast<size_t>(c.length);
  }
  while (right && end > begin) {
    size_t at = end - 1;
    while (at > begin && (text[at] & 0xC0) == 0x80) --at;
    if (!is_white(decode_utf8(text, at).code_point)) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

// Marks since Unicode 9, whose tables Hugging Face's tokenizers strip accents by. Found by comparing every
// code point with tokenizers 0.23.
constexpr CodePoints kLaterAccents[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
    {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xCF3, 0xCF3},     {0xD00, 0xD00},
    {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},
    {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146},
    {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4}, {0x11A01, 0x11A0A},
    {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99},
    {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47},
    {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01},
    {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x13440, 0x13440}, {0x13447, 0x13455},
    {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D},
    {0x1CF30, 0x1CF46}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}};

void strip_marks(std::string_view text, Rewritten& out) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const utf8proc_category_t category =
        c.code_point < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c.code_point);
    const size_t end = at + static_cast<size_t>(c.length);
    const bool is_mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME &&
                         !contains(kLaterAccents, c.code_point);
    if (!is_mark && c.code_point != 0x1CF2 && c.code_point != 0x1CF3) out.copy(text, at, end);
    at = end;
  }
}

void apply_step(const NormalStep& step, std::string_view text, Rewritten& out) {
  using Kind = NormalStep::Kind;
  out.text.reserve(text.size());
  switch (step.kind) {
    case Kind::unicode:  // by normalized()
      break;
    case Kind::bert:
      return bert_cleaned(step.cleaning, text, out);
    case Kind::charsmap:
      return step.map->apply(text, out);
    case Kind::prepend:
      if (!text.empty()) out.put(step.text, 0);
      return out.copy(text, 0, text.size());
    case Kind::replace:
      return replace_all(text, step.text, step.with, out);
    case Kind::replace_rule:
      return each_stretch(text, step.rule, [&](size_t begin, size_t end, bool is_match) {
        is_match ? out.put(step.with, end - 1) : out.copy(text, begin, end);
      });
    case Kind::strip: {
      const std::string_view rest = stripped(text, step.left, step.right);
      const auto begin = static_cast<size_t>(rest.data() - text.data());
      return out.copy(text, begin, begin + rest.size());
    }
    case Kind::lowercase:
      return bert_lowercase(text, out);
    case Kind::strip_accents:
      return strip_marks(text, out);
  }
}

}  // namespace

void replace_all(std::string_view text, std::string_view from, std::string_view to, Rewritten& out) {
  size_t begin = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, begin)) {
    out.copy(text, begin, at);
    begin = at + from.size();
    out.put(to, begin - 1);
  }
  out.copy(text, begin, text.size());
}

std::optional<Rewritten> apply_steps(const std::vector<NormalStep>& steps, std::string_view text,
                                     bool is_aligned) {
  std::optional<Rewritten> now;
  for (const NormalStep& step : steps) {
    const std::string_view given = now ? std::string_view(now->text) : text;
    std::optional<Rewritten> next;
    if (step.kind == NormalStep::Kind::unicode) {
      next = normalized(step.form, given, is_aligned);
      if (!next) continue;
    } else {
      apply_step(step, given, next.emplace(is_aligned));
    }
    if (now) next->follow(*now);
    now = std::move(next);
  }
  return now;
}

Rewritten CutStep::changed(std::string_view piece, bool is_first, bool is_aligned) const {
  Rewritten out(is_aligned);
  if (kind == Kind::prefix_space) {
    if (!piece.starts_with(' ')) out.put(" ", 0);
    out.copy(piece, 0, piece.size());
    return out;
  }
  const bool prepends = prepend == Prepend::always || (prepend == Prepend::first && is_first);
  if (prepends && !piece.starts_with(mark) && !piece.starts_with(' ')) out.put(mark, 0);
  replace_all(piece, " ", mark, out);
  return out;
}

int byte_of_token(std::string_view token) {
  unsigned byte = 0;
  char end = 0;
  if (token.size() != 6 || !token.starts_with("<0x")) return -1;
  const std::string copy(token);
  return std::sscanf(copy.c_str(), "<0x%2X%c", &byte, &end) == 2 && end == '>' ? static_cast<int>(byte) : -1;
}

}  // namespace multihead::text
