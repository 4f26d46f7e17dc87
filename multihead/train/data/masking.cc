#include "multihead/train/data/masking.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

bool is_word_byte(char c) {
  return static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

Masker::Masker(const text::Tokenizer& tokenizer, const MaskOptions& options)
    : options_(options), vocab_size_(tokenizer.vocab_size()) {
  std::optional<int32_t> mask = tokenizer.id("[MASK]");
  if (!mask) mask = tokenizer.id("<mask>");
  MH_CHECK(mask.has_value(), ValueError, "train: the tokenizer has no token [MASK] or <mask>");
  mask_ = *mask;
  const bool is_wordpiece = tokenizer.kind() == text::Tokenizer::Kind::wordpiece;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const std::string& token = tokenizer.token(id);
    // By name: a tokenizer that was saved and read again may know other roles.
    const bool is_unknown = token == "[UNK]" || token == "<unk>";
    is_hidden_.push_back(!tokenizer.is_special(id) || is_unknown ? 1 : 0);
    const std::string text = tokenizer.decode({&id, 1}, {.continued = true});
    const bool goes_on = is_wordpiece ? token.starts_with("##") : !text.empty() && is_word_byte(text[0]);
    starts_word_.push_back(goes_on ? 0 : 1);
    ends_in_word_.push_back(is_wordpiece || (!text.empty() && is_word_byte(text.back())) ? 1 : 0);
  }
}

std::vector<std::vector<int64_t>> Masker::words(std::span<const int32_t> tokens) const {
  std::vector<std::vector<int64_t>> found;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<size_t>(tokens[i]);
    if (is_hidden_[id] == 0) continue;
    const bool goes_on = options_.whole_words && i > 0 && !found.empty() &&
                         found.back().back() == static_cast<int64_t>(i) - 1 && starts_word_[id] == 0 &&
                         ends_in_word_[static_cast<size_t>(tokens[i - 1])] != 0;
    if (!goes_on) found.emplace_back();
    found.back().push_back(static_cast<int64_t>(i));
  }
  return found;
}

MaskedText Masker::operator()(std::span<const int32_t> tokens, RandomStream stream) const {
  MaskedText masked = {{tokens.begin(), tokens.end()}, {}, {}};
  const std::vector<std::vector<int64_t>> all = words(tokens);
  if (all.empty()) return masked;
  std::vector<uint64_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return stream.bits(a) < stream.bits(b); });
  const auto wanted = std::max<int64_t>(1, std::llround(options_.share * static_cast<double>(tokens.size())));
  for (const uint64_t word : order) {
    const auto size = std::ssize(all[word]);
    if (!masked.places.empty() && std::ssize(masked.places) + size > wanted) continue;
    masked.places.insert(masked.places.end(), all[word].begin(), all[word].end());
  }
  std::sort(masked.places.begin(), masked.places.end());
  const auto count = static_cast<uint64_t>(tokens.size());
  for (const int64_t place : masked.places) {
    int32_t& token = masked.tokens[static_cast<size_t>(place)];
    masked.targets.push_back(token);
    // The stream's first numbers, at most one a token, ordered the words.
    const auto at = count + 2 * static_cast<uint64_t>(place);
    const float choice = stream.uniform(at);
    if (choice < 0.8F) {
      token = mask_;
    } else if (choice < 0.9F) {
      token = static_cast<int32_t>(stream.bits(at + 1) % static_cast<uint64_t>(vocab_size_));
    }
  }
  return masked;
}

}  // namespace multihead::train
