// Cross-entropy from logits.
#pragma once

#include <array>
#include <string_view>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"

namespace multihead {

enum class Reduction { mean, sum, none };
constexpr auto enum_words(Reduction) { return std::to_array<std::string_view>({"mean", "sum", "none"}); }

struct CrossEntropyOptions {
  int64_t ignore_index = -100;            ///< targets to ignore
  double label_smoothing = 0;             ///< weight of the uniform distribution in the target, in [0, 1]
  Reduction reduction = Reduction::mean;  ///< the mean is over targets not ignored; 0 if there are none
};

/// -(1 - s) log p[target] - s/V · sum(log p), p = softmax(logits).
///
/// Shapes    logits [..., V], targets [...] -> [] (mean, sum) or [...] (none)
/// Dtypes    logits f32, f64, or bf16, f16 with an f32 loss; targets i64 or i32
/// Gradient  logits: softmax - target distribution, written by the forward into the buffer that becomes the
///           gradient, only if recording
/// Throws    ShapeError, DtypeError, ValueError (a target outside [0, V) that is not ignore_index)
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
/// The same for logits held by no one else, such as a model's temporary result: the gradient overwrites them,
/// so there is no second [..., V] buffer.
Tensor cross_entropy(Tensor&& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(x · weightᵀ, targets) without storing all logits: rows are processed in chunks, gradients
/// included. The loss and the gradient of x are bitwise equal to the two calls'; the gradient of weight
/// accumulates per chunk.
///
/// Shapes    x [..., E], weight [V, E], targets [...]; reduction mean or sum
/// Gradient  x, weight. Of bf16 (Autocast applies) logits, loss and gradients are f32
/// Memory    logits of one chunk: at most 4 Mi elements (at least one row)
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {});

}  // namespace multihead
