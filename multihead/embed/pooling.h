// The vectors of a text's tokens become one.
#pragma once

#include <span>

#include "multihead/core/text/enum_words.h"
#include "multihead/models/encoder.h"

namespace multihead::embed {

/// The way in which they do.
enum class Pooling {
  cls,            ///< that of the first token
  mean,           ///< their mean
  max,            ///< the largest of each column
  mean_sqrt,      ///< their sum over the square root of their number
  last,           ///< that of the last token
  weighted_mean,  ///< their mean, the n-th counting n times
};
constexpr auto enum_words(Pooling) {
  return std::to_array<std::string_view>({"cls", "mean", "max", "mean_sqrt", "last", "weighted_mean"});
}

/// One vector for every sequence of `rows`: the poolings side by side. The first `skipped` tokens of each are left
/// out, but keep their places in a weighted mean.
///
/// Shapes    features [N, E] of S sequences -> [S, poolings · E]
/// Dtypes    f32, f64
/// Gradient  features (of max: the first of the largest)
/// Throws    ShapeError, ValueError (a sequence of no more than `skipped` tokens)
Tensor pooled(std::span<const Pooling> pooling, const Tensor& features, const models::TokenRows& rows,
              int64_t skipped = 0);

/// The mean of a model's states by weight: the sum of weights[i] · states[i], over that of the weights.
/// Shapes: those of the states. Dtypes: f32, f64. Gradient: states.
Tensor mixed(std::span<const Tensor> states, std::span<const float> weights);

/// Rows of length 1 (of a length of at least 1e-12). Shapes: [n, dim]. Dtypes: f32, f64. Gradient: x.
Tensor normalized_rows(const Tensor& x);

}  // namespace multihead::embed
