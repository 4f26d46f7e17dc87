#include "multihead/text/sentencepiece-inl.h"

#include <utf8proc.h>

#include <cstdio>

#include "multihead/text/bert-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

bool is_white(int32_t c) { return c >= 0 && char_class(c) == CharClass::space; }

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return out.append(text, begin);
}

std::string squeezed(std::string_view text, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at >= 2) {
      out += to;
      at = end;
    } else {
      out += text[at++];
    }
  }
  return out;
}

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

std::string without_marks(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const utf8proc_category_t category =
        c.code_point < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c.code_point);
    const auto length = static_cast<size_t>(c.length);
    if (category < UTF8PROC_CATEGORY_MN || category > UTF8PROC_CATEGORY_ME) out.append(text, at, length);
    at += length;
  }
  return out;
}

std::string apply_step(const NormalStep& step, std::string_view text) {
  using Kind = NormalStep::Kind;
  switch (step.kind) {
    case Kind::unicode:
      return normalized(step.form, text).value_or(std::string(text));
    case Kind::charsmap:
      return step.map->apply(text);
    case Kind::prepend:
      return text.empty() ? std::string() : step.text + std::string(text);
    case Kind::replace:
      return replaced(text, step.text, step.with);
    case Kind::squeeze:
      return squeezed(text, step.with);
    case Kind::strip:
      return std::string(stripped(text, step.left, step.right));
    case Kind::lowercase:
      return bert_lowercase(text);
    default:
      return without_marks(text);
  }
}

}  // namespace

std::string apply_steps(const std::vector<NormalStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalStep& step : steps) out = apply_step(step, out);
  return out;
}

void Metaspace::each_piece(std::string_view text, bool is_first,
                           FunctionRef<void(std::string_view)> use) const {
  if (!words_first) return each_marked(text, is_first, use);
  size_t begin = 0, at = 0;
  const auto end_word = [&] {
    if (at > begin) each_marked(text.substr(begin, at - begin), is_first && begin == 0, use);
  };
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text, at);
    const auto length = static_cast<size_t>(c.length);
    if (is_white(c.code_point)) {
      end_word();
      begin = at + length;
    }
    at += length;
  }
  end_word();
}

void Metaspace::each_marked(std::string_view text, bool is_first,
                            FunctionRef<void(std::string_view)> use) const {
  std::string marked = replaced(text, " ", mark);
  const bool prepends = prepend == Prepend::always || (prepend == Prepend::first && is_first);
  if (prepends && !marked.starts_with(mark)) marked.insert(0, mark);
  if (!cuts) {
    if (!marked.empty()) use(marked);
    return;
  }
  for (size_t begin = 0; begin < marked.size();) {
    const size_t end =
        std::min(marked.find(mark, begin + (marked.compare(begin, mark.size(), mark) == 0 ? mark.size() : 0)),
                 marked.size());
    use(std::string_view(marked).substr(begin, end - begin));
    begin = end;
  }
}

int byte_of_token(std::string_view token) {
  unsigned byte = 0;
  char end = 0;
  if (token.size() != 6 || !token.starts_with("<0x")) return -1;
  const std::string copy(token);
  return std::sscanf(copy.c_str(), "<0x%2X%c", &byte, &end) == 2 && end == '>' ? static_cast<int>(byte) : -1;
}

}  // namespace multihead::text
