#include "multihead/text/tokenizer/pipeline/normalize-inl.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

// The tables of Hugging Face's tokenizers are of Unicode 9. What was assigned since and combines, reorders or
// decomposes does nothing of it there: each such character is alone. Found by comparing every code point
// with tokenizers 0.23; the blocks of Unicode 16 are for versions of utf8proc that know them.
constexpr CodePoints kTooNew[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105F3},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x16139}, {0x16D40, 0x16D79}, {0x16FF0, 0x16FF1},
    {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

utf8proc_option_t options_of(Normalizer form) {
  const bool composed = form == Normalizer::nfc || form == Normalizer::nfkc;
  const bool compatible = form == Normalizer::nfkc || form == Normalizer::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

// Valid UTF-8 of characters that utf8proc may treat as it likes.
void append_mapped(Normalizer form, std::string_view text, std::string& out) {
  if (text.size() < 2) {  // ASCII
    out += text;
    return;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) throw std::bad_alloc();  // the only error there is for valid text
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

}  // namespace

std::optional<Rewritten> normalized(Normalizer form, std::string_view text, bool is_aligned) {
  // Below U+0300 nothing combines; ASCII is in every form.
  const unsigned char first = form == Normalizer::nfc ? 0xCC : 0x80;
  const bool may_change = form != Normalizer::none && std::any_of(text.begin(), text.end(), [&](char c) {
                            return static_cast<unsigned char>(c) >= first;
                          });
  if (!may_change) return std::nullopt;
  Rewritten out(is_aligned);
  out.text.reserve(text.size());
  size_t begin = 0;
  const auto append = [&](size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    is_aligned ? append_aligned(form, part, begin, out) : append_mapped(form, part, out.text);
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool alone = c.code_point < 0 || contains(kTooNew, c.code_point);
    // An ASCII character may combine with what follows, never with what is before it.
    if (alone || c.code_point < 0x80) {
      append(at);
      begin = at;
    }
    at += static_cast<size_t>(c.length);
    if (!alone) continue;
    out.copy(text, begin, at);
    begin = at;
  }
  append(text.size());
  return out;
}

}  // namespace multihead::text
