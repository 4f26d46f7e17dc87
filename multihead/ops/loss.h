// Cross-entropy of a classification, from logits.
#pragma once

#include "multihead/core/tensor.h"

namespace multihead {

enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  int64_t ignore_index = -100;            ///< targets that count for nothing
  double label_smoothing = 0;             ///< weight of the uniform distribution in the target, in [0, 1]
  Reduction reduction = Reduction::mean;  ///< the mean is over the targets that count; 0 if there are none
};

/// -(1 - s) log p[target] - s/V · sum(log p), p = softmax(logits).
///
/// Shapes    logits [..., V], targets [...] -> [] (mean, sum) or [...] (none)
/// Dtypes    logits f32 or f64, targets i64 or i32
/// Gradient  logits: softmax - target distribution, written by the forward into the one buffer that becomes
/// the
///           gradient, and only if recording
/// Throws    ShapeError, DtypeError, ValueError (a target outside [0, V) that is not ignore_index)
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
/// The same for logits nobody else holds, such as a model's result passed on directly: the gradient is
/// written over them, and no second [..., V] buffer exists.
Tensor cross_entropy(Tensor&& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(x · weightᵀ, targets) without ever holding all logits: rows are taken in chunks, and each
/// chunk's share of the gradients is computed at once. The loss and the gradient of x have the bits of the
/// two calls; that of weight adds up per chunk.
///
/// Shapes    x [..., E], weight [V, E], targets [...]; reduction mean or sum
/// Gradient  x, weight
/// Memory    logits of one chunk: at most 4 Mi elements (at least one row)
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {});

}  // namespace multihead
