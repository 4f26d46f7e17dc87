#include "multihead/train/data/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "multihead/core/error.h"
#include "multihead/text/words-inl.h"

namespace multihead::train {

Masker::Masker(const text::Tokenizer& tokenizer, const MaskOptions& options)
    : options_(options), vocab_size_(tokenizer.vocab_size()) {
  std::optional<int32_t> mask = tokenizer.id("[MASK]");
  if (!mask) mask = tokenizer.id("<mask>");
  MH_CHECK(mask.has_value(), ValueError, "train: the tokenizer has no token [MASK] or <mask>");
  mask_ = *mask;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const std::string& token = tokenizer.token(id);
    // By name: a tokenizer that was saved and read again may know other roles.
    const bool is_unknown = token == "[UNK]" || token == "<unk>";
    is_hidden_.push_back(!tokenizer.is_special(id) || is_unknown ? 1 : 0);
    texts_.push_back(tokenizer.decode({&id, 1}, {.continued = true}));
  }
}

std::vector<std::vector<int64_t>> Masker::words(std::span<const int32_t> tokens) const {
  std::string text;
  std::vector<size_t> begins;
  for (const int32_t token : tokens) {
    begins.push_back(text.size());
    text += texts_[static_cast<size_t>(token)];
  }
  std::vector<std::vector<int64_t>> found;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (is_hidden_[static_cast<size_t>(tokens[i])] == 0) continue;
    const bool goes_on = options_.whole_words && !found.empty() &&
                         found.back().back() == static_cast<int64_t>(i) - 1 && begins[i] > 0 &&
                         begins[i] < text.size() && text::is_inside_word(text, begins[i]);
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
    if (std::ssize(masked.places) + std::ssize(all[word]) > wanted) continue;
    masked.places.insert(masked.places.end(), all[word].begin(), all[word].end());
  }
  if (masked.places.empty()) {
    masked.places = *std::ranges::min_element(all, {}, [](const auto& word) { return word.size(); });
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
