// Unicode normalisation that says which characters of the input each one of the output stands for, as the
// offsets of Hugging Face's tokenizers count them.
#include <utf8proc.h>

#include <algorithm>

#include "multihead/text/tokenizer/pipeline/normalize-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

// A character that takes the place of 1 - `more` of the input.
struct Mapped {
  int32_t code_point;
  int more;  // 1: one more after that of the character before it
  int combining_class;
};

std::vector<Mapped> decomposed(std::string_view text, bool is_compatible) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (is_compatible ? UTF8PROC_COMPAT : 0));
  std::vector<Mapped> out;
  size_t first_mark = 0;  // of the run that is put in order
  const auto sort_marks = [&] {
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(first_mark), out.end(),
                     [](const Mapped& a, const Mapped& b) { return a.combining_class < b.combining_class; });
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += static_cast<size_t>(c.length);
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(c.code_point, parts, 32, options, &boundary);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const int mark = utf8proc_get_property(parts[i])->combining_class;
      if (mark == 0) sort_marks();
      out.push_back({parts[i], i > 0 ? 1 : 0, mark});
      if (mark == 0) first_mark = out.size();
    }
  }
  sort_marks();
  return out;
}

// -1: they stay two.
int32_t composed(int32_t first, int32_t second) {
  utf8proc_int32_t both[] = {first, second};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  return utf8proc_normalize_utf32(both, 2, options) == 1 ? both[0] : -1;
}

// Each mark joins the last starter unless one of its class, or another starter, lies between.
void compose(std::vector<Mapped>& characters) {
  size_t end = 0, starter = 0;
  bool has_starter = false;
  int last_class = -1;  // of what was kept after the starter; -1: nothing
  for (const Mapped& c : std::vector<Mapped>(characters)) {
    if (has_starter && last_class < c.combining_class) {
      if (const int32_t both = composed(characters[starter].code_point, c.code_point); both >= 0) {
        characters[starter].code_point = both;
        characters[starter].more += c.more - 1;
        continue;
      }
    }
    if (c.combining_class == 0) {
      starter = end;
      has_starter = true;
      last_class = -1;
    } else {
      last_class = c.combining_class;
    }
    characters[end++] = c;
  }
  characters.resize(end);
}

}  // namespace

void append_aligned(Normalizer form, std::string_view text, size_t begin, Rewritten& out) {
  const bool is_compatible = form == Normalizer::nfkc || form == Normalizer::nfkd;
  std::vector<Mapped> characters = decomposed(text, is_compatible);
  if (form == Normalizer::nfc || form == Normalizer::nfkc) compose(characters);
  size_t at = 0;
  std::string bytes;
  for (const Mapped& c : characters) {
    bytes.clear();
    append_utf8(c.code_point, bytes);
    out.put(bytes, c.more > 0 ? std::max<size_t>(begin + at, 1) - 1 : begin + at);
    for (int gone = 1 - c.more; gone > 0 && at < text.size(); --gone)
      at += static_cast<size_t>(decode_utf8(text, at).length);
  }
}

}  // namespace multihead::text
