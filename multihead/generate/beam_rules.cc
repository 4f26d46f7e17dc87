#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/generate/beam_rules-inl.h"
#include "multihead/generate/repetition-inl.h"
#include "multihead/generate/token_rules-inl.h"

namespace multihead::detail {
namespace {

void renormalize(std::span<float> scores) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  if (largest == kNever) return;
  double sum = 0;
  for (const float score : scores) sum += std::exp(static_cast<double>(score - largest));
  const auto shift = static_cast<float>(largest + std::log(sum));
  for (float& score : scores) score -= shift;
}

}  // namespace

size_t hypotheses_wanted(const BeamOptions& o) {
  if (o.sample) return static_cast<size_t>(o.num_hypotheses);
  const double wanted = std::ceil(static_cast<double>(o.beam_size) * o.patience);
  return static_cast<size_t>(std::min(wanted, double{INT32_MAX}));
}

void check_beam_options(const BeamOptions& o, size_t sentences) {
  constexpr int64_t kMost = 1 << 20;
  const auto in_range = [](const char* name, int64_t value, int64_t most) {
    MH_CHECK(value >= 1, ValueError, "beam search: ", name, " must be at least 1, got ", value);
    MH_CHECK(value <= most, ValueError, "beam search: ", name, " must be at most ", most, ", got ", value);
  };
  in_range("beam_size", o.beam_size, kMost);
  in_range("num_hypotheses", o.num_hypotheses, kMost);
  in_range("max_length", o.max_length, INT64_MAX);
  MH_CHECK(o.patience > 0 && std::isfinite(o.patience), ValueError, "beam search: patience must be > 0, got ",
           o.patience);
  MH_CHECK(std::isfinite(o.length_penalty), ValueError, "beam search: length_penalty must be a number, got ",
           o.length_penalty);
  MH_CHECK(o.no_repeat_ngram >= 0, ValueError, "beam search: no_repeat_ngram must be >= 0, got ",
           o.no_repeat_ngram);
  MH_CHECK(o.min_length >= 0 && o.min_length <= o.max_length, ValueError,
           "beam search: min_length must be in [0, max_length], got ", o.min_length);
  MH_CHECK(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), ValueError,
           "beam search: repetition_penalty must be > 0, got ", o.repetition_penalty);
  MH_CHECK(o.prefixes.empty() || o.prefixes.size() == sentences, ValueError,
           "beam search: expected no prefixes or one per sentence, got ", o.prefixes.size(), " prefixes for ",
           sentences, " sentences");
  check(o.sampling);
  MH_CHECK(!o.alternatives || !o.sample, ValueError,
           "beam search: alternatives are searched, not sampled; got both");
  MH_CHECK(o.alternatives || static_cast<size_t>(o.num_hypotheses) <= hypotheses_wanted(o), ValueError,
           "beam search: num_hypotheses ", o.num_hypotheses, " exceeds beam_size ", o.beam_size,
           " · patience ", o.patience);
}

void apply_rules(const BeamOptions& o, const NextToken& next, std::span<float> scores) {
  const size_t length = next.history.size() - 1;
  // Forced tokens override every other rule.
  if (length < next.prefix.size() || next.last) {
    const auto only = static_cast<size_t>(next.last ? next.eos : next.prefix[length]);
    const bool free = next.last ? o.free_forced_end : length == 0 && o.first_token.has_value();
    const float score = free ? 0 : scores[only];
    std::fill(scores.begin(), scores.end(), kNever);
    scores[only] = score;
    return;
  }
  if (!penalizes_logits(o)) penalize(o.repetition_penalty, next.history, scores);
  if (static_cast<int64_t>(length) < o.min_length) scores[static_cast<size_t>(next.eos)] = kNever;
  ban_sequences(o.suppress, next.history, scores);
  ban_repeated(o.no_repeat_ngram, next.history, scores);
  if (o.renormalize) renormalize(scores);
}

}  // namespace multihead::detail
