#include "multihead/generate/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/generate/repetition-inl.h"
#include "multihead/kernels/reduce/next_above.h"

namespace multihead {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// All in order: eleven bits of the logits at a time, the lowest first. Sorting 50,000 by comparison takes
// longer than computing them (9 ms).
std::vector<int32_t> sorted(std::span<const float> logits, std::vector<int32_t> tokens) {
  const auto key = [&](int32_t token) {  // as an integer, the smaller the more likely
    const float logit = logits[static_cast<size_t>(token)] + 0.0f;  // -0 is 0
    const auto bits = std::bit_cast<uint32_t>(logit);
    return bits >> 31 ? bits : ~bits & 0x7fffffff;
  };
  std::vector<int32_t> other(tokens.size());
  for (int shift = 0; shift < 33; shift += 11) {
    std::array<size_t, 2049> begins = {};
    const auto digit = [&](int32_t token) { return key(token) >> shift & 2047; };
    for (const int32_t token : tokens) ++begins[digit(token) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (const int32_t token : tokens) other[begins[digit(token)]++] = token;
    tokens.swap(other);
  }
  return tokens;
}

// Tokens whose logit is above a threshold, in their own order; NaN never is.
std::vector<int32_t> tokens_above(std::span<const float> logits, float threshold) {
  const auto size = static_cast<int64_t>(logits.size());
  const auto next = [&](int64_t i) { return kernels::next_above(logits.data(), i, size, threshold); };
  std::vector<int32_t> tokens;
  for (int64_t i = next(0); i < size; i = next(i + 1)) tokens.push_back(static_cast<int32_t>(i));
  return tokens;
}

// The largest logit, -inf if there is none.
float largest_of(std::span<const float> logits) {
  const auto size = static_cast<int64_t>(logits.size());
  float largest = kExcluded;
  const auto next = [&](int64_t i) { return kernels::next_above(logits.data(), i, size, largest); };
  for (int64_t i = next(0); i < size; i = next(i + 1)) largest = logits[static_cast<size_t>(i)];
  return largest;
}

// Beyond this many times the temperature below the largest logit a token adds nothing to a sum of
// probabilities in f64: e^-38 < 2^-54.
constexpr double kNegligible = 38;

// The bound below which candidates() may skip a token: a greedy choice all but the largest, a top_p (that is not 1 but for
// rounding) tokens after which it would end.
float threshold(std::span<const float> logits, const SamplingOptions& o) {
  if (o.temperature > 0 && o.top_p > 1 - 1e-9) return kExcluded;
  const float largest = largest_of(logits);
  const double least = static_cast<double>(largest) - kNegligible * o.temperature,
               finite = std::numeric_limits<float>::max();
  return std::nextafter(static_cast<float>(std::max(least, -finite)), kExcluded);
}

// Tokens with a finite logit above the threshold, most likely first, equal ones in their own order; only the
// first `limit` are kept.
std::vector<int32_t> ranked(std::span<const float> logits, size_t limit, float threshold) {
  std::vector<int32_t> tokens = tokens_above(logits, threshold);
  MH_CHECK(!tokens.empty(), ValueError,
           "sampling: no token is left: options exclude all, or the model's output is not finite");
  if (limit >= tokens.size()) return sorted(logits, std::move(tokens));
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(limit), tokens.end(),
                    more_likely);
  tokens.resize(limit);
  return tokens;
}

void normalize(std::vector<Candidate>& list) {
  double total = 0;
  for (const Candidate& c : list) total += c.probability;
  for (Candidate& c : list) c.probability /= total;
}

void keep_top_p(std::vector<Candidate>& list, double top_p) {
  double sum = 0;
  size_t kept = 0;
  while (kept < list.size() && (kept == 0 || sum < top_p)) sum += list[kept++].probability;
  list.resize(kept);
}

void keep_min_p(std::vector<Candidate>& list, double min_p) {
  const double least = min_p * list.front().probability;
  while (list.size() > 1 && list.back().probability < least) list.pop_back();
}

}  // namespace

void check(const SamplingOptions& o) {
  MH_CHECK(std::isfinite(o.temperature) && o.temperature >= 0, ValueError,
           "sampling: temperature must be a number >= 0, got ", o.temperature);
  MH_CHECK(o.top_k >= 0, ValueError, "sampling: top_k must be >= 0, got ", o.top_k);
  MH_CHECK(o.top_p > 0 && o.top_p <= 1, ValueError, "sampling: top_p must be in (0, 1], got ", o.top_p);
  MH_CHECK(o.min_p >= 0 && o.min_p <= 1, ValueError, "sampling: min_p must be in [0, 1], got ", o.min_p);
  MH_CHECK(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0, ValueError,
           "sampling: repetition_penalty must be > 0, got ", o.repetition_penalty);
}

std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> history,
                                  const SamplingOptions& options) {
  check(options);
  const bool penalizes = options.repetition_penalty != 1;
  std::vector<float> own;
  if (penalizes) {
    own.assign(logits.begin(), logits.end());
    detail::penalize(options.repetition_penalty, history, own);
  }
  const std::span<const float> scores = penalizes ? own : logits;
  const bool greedy = options.temperature == 0;
  const size_t limit = greedy ? 1 : options.top_k > 0 ? static_cast<size_t>(options.top_k) : scores.size();
  const std::vector<int32_t> tokens = ranked(scores, limit, threshold(scores, options));
  if (greedy) return {{tokens.front(), 1.0}};
  const double largest = scores[static_cast<size_t>(tokens.front())];
  std::vector<Candidate> list;
  list.reserve(tokens.size());
  for (const int32_t token : tokens) {
    // An infinite logit takes everything.
    const double difference = scores[static_cast<size_t>(token)] == largest
                                  ? 0
                                  : (scores[static_cast<size_t>(token)] - largest) / options.temperature;
    list.push_back({token, std::exp(difference)});
  }
  normalize(list);
  keep_top_p(list, options.top_p);
  normalize(list);
  keep_min_p(list, options.min_p);
  normalize(list);
  return list;
}

int32_t sample(std::span<const float> logits, std::span<const int32_t> history,
               const SamplingOptions& options, double uniform) {
  const std::vector<Candidate> list = candidates(logits, history, options);
  double left = uniform;
  for (const Candidate& candidate : list) {
    left -= candidate.probability;
    if (left < 0) return candidate.token;
  }
  return list.back().token;
}

}  // namespace multihead
