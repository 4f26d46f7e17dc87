#include "multihead/generate/token_rules.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/generate/prefix-inl.h"
#include "multihead/generate/token_rules-inl.h"

namespace multihead {
namespace {

bool ends_with(std::span<const int32_t> tokens, std::span<const int32_t> suffix) {
  return tokens.size() >= suffix.size() &&
         std::equal(suffix.begin(), suffix.end(), tokens.end() - static_cast<std::ptrdiff_t>(suffix.size()));
}

void ban(int32_t token, std::span<float> scores) {
  if (token >= 0 && static_cast<size_t>(token) < scores.size())
    scores[static_cast<size_t>(token)] = detail::kNever;
}

void force(int32_t token, std::span<float> scores) {
  const float score = scores[static_cast<size_t>(token)];
  std::fill(scores.begin(), scores.end(), detail::kNever);
  scores[static_cast<size_t>(token)] = score;
}

}  // namespace

void detail::ban_repeated(int64_t n, std::span<const int32_t> history, std::span<float> scores) {
  const auto length = static_cast<size_t>(n);
  if (length == 0 || history.size() + 1 < length) return;
  const std::span<const int32_t> tail = history.last(length - 1);
  for (size_t i = 0; i + length <= history.size(); ++i) {
    if (std::equal(tail.begin(), tail.end(), history.begin() + static_cast<std::ptrdiff_t>(i))) {
      ban(history[i + length - 1], scores);
    }
  }
}

void detail::ban_sequences(const std::vector<std::vector<int32_t>>& sequences,
                           std::span<const int32_t> history, std::span<float> scores) {
  for (const std::vector<int32_t>& banned : sequences) {
    if (!banned.empty() && ends_with(history, std::span(banned).first(banned.size() - 1))) {
      ban(banned.back(), scores);
    }
  }
}

void check_rules(const GenerateOptions& o, int64_t vocab_size) {
  MH_CHECK(o.no_repeat_ngram >= 0, ValueError, "generate: no_repeat_ngram must be >= 0, got ",
           o.no_repeat_ngram);
  MH_CHECK(o.min_new_tokens >= 0 && o.min_new_tokens <= std::max<int64_t>(o.max_new_tokens, 0), ValueError,
           "generate: min_new_tokens must be in [0, max_new_tokens ", o.max_new_tokens, "], got ",
           o.min_new_tokens);
  const auto check_token = [&](const char* what, int32_t token) {
    MH_CHECK(token >= 0 && token < vocab_size, ValueError, "generate: token ", token, " of ", what,
             " is outside the vocabulary of ", vocab_size);
  };
  for (const int32_t token : o.stop_tokens)  // folders name some that their vocabulary lacks
    MH_CHECK(token >= 0, ValueError, "generate: stop_tokens must not be negative, got ", token);
  for (const std::vector<int32_t>& sequence : o.suppress) {
    MH_CHECK(!sequence.empty(), ValueError, "generate: suppress has an empty sequence");
    for (const int32_t token : sequence) check_token("suppress", token);
  }
  if (o.first_token) check_token("first_token", *o.first_token);
  if (o.last_token) check_token("last_token", *o.last_token);
  MH_CHECK(!o.constraint || (!o.first_token && !o.last_token && o.min_new_tokens == 0), ValueError,
           "generate: a constraint excludes first_token, last_token and min_new_tokens");
}

void check_length(const models::LanguageModel& model, int64_t prompt, const GenerateOptions& options) {
  const int64_t needed = whole_length(prompt, options.max_new_tokens) - 1;
  MH_CHECK(options.overflow == Overflow::slide || needed <= model.longest(), ValueError,
           "generate: a prompt of ", prompt, " tokens and ", options.max_new_tokens,
           " new ones (max_new_tokens) need a context of ", needed, ", the model has ",
           model.config().context, "; ask for fewer, or let the context slide");
}

void apply_rules(const GenerateOptions& o, std::span<const int32_t> text, int64_t fresh,
                 std::span<float> logits) {
  // Forced tokens override every other rule.
  if (o.last_token && fresh + 1 >= o.max_new_tokens) return force(*o.last_token, logits);
  if (o.first_token && fresh == 0) return force(*o.first_token, logits);
  detail::ban_repeated(o.no_repeat_ngram, text, logits);
  detail::ban_sequences(o.suppress, text, logits);
  if (fresh >= o.min_new_tokens) return;
  for (const int32_t stop : o.stop_tokens) ban(stop, logits);
}

}  // namespace multihead
