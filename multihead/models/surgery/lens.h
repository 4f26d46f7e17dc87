// Where a language model's prediction comes from: each layer's prediction, each head's importance, which
// tokens contribute. Python's multihead.lens has more.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/models/language_model.h"

namespace multihead::models {

struct Guess {
  int32_t token = 0;
  double probability = 0;
};

/// The `count` most probable tokens of each row of logits [rows, V], best first.
std::vector<std::vector<Guess>> most_probable(const Tensor& logits, int64_t count);

/// The `count` most probable next tokens after each of the tokens [1, T], as if the model ended before each
/// layer; last, its own (the logit lens, nostalgebraist 2020): [num_layers + 1][T][count].
std::vector<std::vector<std::vector<Guess>>> logit_lens(const LanguageModel& model, const Tensor& tokens,
                                                        int64_t count);

/// By how much the log-probability of `target` after the last of the tokens [1, T] changes with each head's
/// output at zero: [num_layers][heads of the layer]. The heads of a layer are rows of one batch that begins
/// at the layer.
std::vector<std::vector<double>> ablate_heads(const LanguageModel& model, const Tensor& tokens,
                                              int32_t target);

/// Parts of a difference.
struct Shares {
  std::vector<double> of_tokens = {};  ///< [T]
  double whole = 0;                    ///< the difference

  /// Whether the parts are the difference to a tenth, or to .05: else there were too few steps.
  bool add_up() const;
};

/// Each token's share of the log-probability of `target` after the last of the tokens [1, T], less that beside the
/// mean embedding in every place: integrated gradients in `steps` steps (Sundararajan et al. 2017). Between there and a
/// text of a large model the gradient may be so wild that no number of steps is enough.
Shares integrated_gradients(const LanguageModel& model, const Tensor& tokens, int32_t target,
                            int64_t steps = 16);

}  // namespace multihead::models
