#include "multihead/ops/attention/bind-inl.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/attention/terms-inl.h"

namespace multihead::detail {

uint64_t dropout_key(const RandomStream& stream) {
  const auto words = stream.block(0);
  return uint64_t{words[1]} << 32 | words[0];
}

BoundAttention::BoundAttention(std::string who, const AttentionSizes& sizes, const AttentionOptions& options,
                               const ScoreMod& score_mod, Dtype dtype)
    : who_(std::move(who)), sizes_(sizes), mask_(who_, sizes, options.mask), score_mod_(score_mod) {
  bind_numbers(options, dtype);
  mask_.apply(problem_);
  for (const AttentionTerm& term : attention_terms()) {
    if (!term.is_set(options, score_mod)) continue;
    const Tensor x =
        term.bind({who_, sizes_, options, score_mod_, dtype, mask_.offsets(), score_context_, terms_});
    if (term.tensor == nullptr) continue;
    tensors_[learned_index(term.tensor)] = x;
    shapes_[learned_index(term.tensor)] = (options.*term.tensor).shape();
  }
  bind_dropout(options);
}

void BoundAttention::bind_numbers(const AttentionOptions& options, Dtype dtype) {
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes_.head_dim)));
  const bool fits = dtype == Dtype::f64 ? std::isfinite(scale) : std::isfinite(static_cast<float>(scale));
  MH_CHECK(fits, ValueError, who_, ": scale must be finite, got ", scale, " in ", arithmetic_dtype(dtype));
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError, who_,
           ": dropout_p must be in [0, 1], got ", options.dropout_p);
  const bool has_table =
      options.relative_bias.defined() || options.relative_key.defined() || options.relative_value.defined();
  MH_CHECK(options.relative_center == -1 || has_table, ValueError, who_,
           ": relative_center is a row of relative_bias, relative_key or relative_value; give one of them");
  problem_.scale = scale;
  problem_.empty_row = options.empty_row;
}

// Last, when nothing can throw any more: it moves the generator.
void BoundAttention::bind_dropout(const AttentionOptions& options) {
  if (options.rng == nullptr || options.dropout_p == 0) return;
  problem_.dropout_p = double{options.dropout_p};
  problem_.dropout_key = dropout_key(options.rng->next());
}

}  // namespace multihead::detail
