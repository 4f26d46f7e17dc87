#include "multihead/generate/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "multihead/core/error.h"

namespace multihead {

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int64_t top) {
  MH_CHECK(token >= 0 && token < std::ssize(logits), ValueError, "token_logprobs: token ", token,
           " is outside the vocabulary of ", logits.size());
  MH_CHECK(top >= 0, ValueError, "token_logprobs: top must not be negative, got ", top);
  const float largest = *std::max_element(logits.begin(), logits.end());
  MH_CHECK(std::isfinite(largest), ValueError, "token_logprobs: no logit is finite");
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  const double total = largest + std::log(sum);
  const auto of = [&](int32_t id) {
    return TokenLogprob{id, static_cast<float>(logits[static_cast<size_t>(id)] - total)};
  };
  TokenLogprobs found = {.chosen = of(token)};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(top, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (auto id = order.begin(); id != end; ++id) found.top.push_back(of(*id));
  return found;
}

}  // namespace multihead
