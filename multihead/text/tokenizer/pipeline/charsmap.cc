#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/pipeline/pipeline-inl.h"

namespace multihead::text {

CharsMap::CharsMap(std::string bytes, bool longest) : bytes_(std::move(bytes)), longest_(longest) {
  uint32_t size = 0;
  MH_CHECK(bytes_.size() >= sizeof size, ValueError, "precompiled_charsmap: ", bytes_.size(),
           " bytes are not a valid table");
  std::memcpy(&size, bytes_.data(), sizeof size);
  MH_CHECK(size % 4 == 0 && size <= bytes_.size() - sizeof size, ValueError,
           "precompiled_charsmap: a trie of ", size, " bytes in a table of ", bytes_.size());
  trie_units_ = size / 4;
  texts_begin_ = sizeof size + size;
}

uint32_t CharsMap::unit(size_t index) const {
  uint32_t value = 0;
  if (index < trie_units_) std::memcpy(&value, bytes_.data() + 4 + 4 * index, sizeof value);
  return value;
}

// The shortest entry that the text begins with, or the longest. Units of the double array: the label in the low
// byte, bit 8 for a value below, the offset of the children in the upper bits.
std::optional<CharsMap::Entry> CharsMap::entry(std::string_view text) const {
  const auto offset = [](uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
  };
  std::optional<Entry> found;
  size_t at = offset(unit(0));
  for (size_t i = 0; i < text.size() && (longest_ || !found); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    at ^= byte;
    const uint32_t node = unit(at);
    if (at >= trie_units_ || (node & (1u << 31 | 0xFF)) != byte) break;
    at ^= offset(node);
    if ((node >> 8 & 1) == 0) continue;
    const size_t begin = texts_begin_ + (unit(at) & ~(1u << 31));
    if (begin >= bytes_.size()) break;
    const size_t end = std::min(bytes_.find('\0', begin), bytes_.size());
    found = {i + 1, std::string_view(bytes_).substr(begin, end - begin)};
  }
  return found;
}

namespace {

size_t grapheme_end(std::string_view text, size_t begin) {
  utf8proc_int32_t state = 0;
  Utf8Char c = decode_utf8(text, begin);
  for (size_t end = begin;;) {
    end += static_cast<size_t>(c.length);
    if (end >= text.size()) return end;
    const Utf8Char next = decode_utf8(text, end);
    const bool is_break = c.code_point < 0 || next.code_point < 0 ||
                          utf8proc_grapheme_break_stateful(c.code_point, next.code_point, &state);
    if (is_break) return end;
    c = next;
  }
}

// Counts characters as Hugging Face's tokenizers do: those of a replacement take the places of the replaced
// ones, one by one, further ones that of the last; what is dropped counts to the character before it, and is
// forgotten where there is none.
class Replacing {
 public:
  Replacing(std::string_view text, Rewritten& out) : text_(text), out_(out) {}

  void keep(size_t begin, size_t end) {
    if (!out_.is_aligned()) return out_.copy(text_, begin, end);
    put(text_.substr(begin, end - begin), at_);
    pass(1);
  }

  void replace(size_t begin, size_t end, std::string_view with) {
    if (!out_.is_aligned()) return void(out_.text += with);
    const size_t gone = count(text_.substr(begin, end - begin)), come = count(with);
    size_t i = 0;
    for (size_t at = 0; at < with.size(); ++i) {
      const std::string_view one = with.substr(at, static_cast<size_t>(decode_utf8(with, at).length));
      at += one.size();
      put(one, i < gone ? at_ : std::max<size_t>(at_, 1) - 1);
      if (i < gone) pass(1);
      is_extra_ = i >= gone;
    }
    if (come >= gone || out_.text.empty()) return;
    if (is_extra_) std::fill(out_.from.end() - static_cast<std::ptrdiff_t>(last_size_), out_.from.end(), at_);
    is_extra_ = false;
    pass(gone - come);
  }

 private:
  static size_t count(std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; at < text.size(); ++n) at += static_cast<size_t>(decode_utf8(text, at).length);
    return n;
  }
  void put(std::string_view bytes, size_t at) {
    out_.put(bytes, std::min(at, text_.size() - 1));
    last_size_ = bytes.size();
    is_extra_ = false;
  }
  void pass(size_t characters) {
    for (; characters > 0 && at_ < text_.size(); --characters)
      at_ += static_cast<size_t>(decode_utf8(text_, at_).length);
  }

  std::string_view text_;
  Rewritten& out_;
  size_t at_ = 0, last_size_ = 0;
  bool is_extra_ = false;  // the last character of the output replaced none
};

}  // namespace

void CharsMap::replace_longest(std::string_view text, Rewritten& out) const {
  Replacing replacing(text, out);
  for (size_t at = 0; at < text.size();) {
    const std::optional<Entry> found = entry(text.substr(at));
    const size_t behind = at + (found ? found->length : static_cast<size_t>(decode_utf8(text, at).length));
    found ? replacing.replace(at, behind, found->with) : replacing.keep(at, behind);
    at = behind;
  }
}

// By graphemes, if they are short, then by characters.
void CharsMap::apply(std::string_view text, Rewritten& out) const {
  constexpr size_t kShort = 6;
  out.text.reserve(text.size());
  if (longest_) return replace_longest(text, out);
  Replacing replacing(text, out);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = grapheme_end(text, begin);
    const auto whole = end - begin < kShort ? entry(text.substr(begin, end - begin)) : std::nullopt;
    if (whole) replacing.replace(begin, end, whole->with);
    for (size_t at = begin; at < end && !whole;) {
      const size_t behind = at + static_cast<size_t>(decode_utf8(text, at).length);
      const auto other = entry(text.substr(at, behind - at));
      other ? replacing.replace(at, behind, other->with) : replacing.keep(at, behind);
      at = behind;
    }
    begin = end;
  }
}

}  // namespace multihead::text
