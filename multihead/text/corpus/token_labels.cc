#include "multihead/text/corpus/token_labels.h"

#include <algorithm>
#include <array>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead::text {
namespace {

// "¹⁄₂"; a character has at most four bytes.
std::string part_of(size_t part, size_t parts) {
  constexpr std::array<const char*, 5> kAbove = {"⁰", "¹", "²", "³", "⁴"}, kBelow = {"₀", "₁", "₂", "₃", "₄"};
  return std::string(kAbove[part]) + "⁄" + kBelow[parts];
}

std::string byte_label(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

}  // namespace

std::vector<std::string> token_labels(std::span<const std::string> pieces) {
  std::string text;
  std::vector<size_t> owner;  // of every byte
  for (size_t i = 0; i < pieces.size(); ++i) {
    text += pieces[i];
    owner.insert(owner.end(), pieces[i].size(), i);
  }
  std::vector<std::string> labels(pieces.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char decoded = decode_utf8(text, at);
    const auto length = static_cast<size_t>(decoded.length);
    const std::string character = text.substr(at, length);
    std::vector<size_t> owners(owner.begin() + static_cast<std::ptrdiff_t>(at),
                               owner.begin() + static_cast<std::ptrdiff_t>(at + length));
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    for (size_t part = 0; part < owners.size(); ++part) {
      std::string& label = labels[owners[part]];
      if (decoded.code_point < 0) {
        label += byte_label(static_cast<unsigned char>(text[at]));
      } else {
        label += owners.size() == 1 ? character : character + part_of(part + 1, owners.size());
      }
    }
    at += length;
  }
  return labels;
}

std::vector<std::string> token_labels(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<std::string> pieces;
  for (const int32_t& id : ids) pieces.push_back(tokenizer.decode(std::span(&id, 1)));
  std::vector<std::string> labels = token_labels(pieces);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokenizer.vocab_size()) labels[i] = concat("<", ids[i], ">");
  }
  return labels;
}

}  // namespace multihead::text
