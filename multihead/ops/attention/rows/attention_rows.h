// Attention whose weights are any function of whole rows of scores: running sums over the keys (stick-breaking, CoPE),
// mixing over heads, sorting, convolutions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/attention/masks/mask.h"

namespace multihead {

/// Some rows of scores, and where they lie.
struct ScoreRows {
  Tensor scores;  ///< [B, H, rows, keys]: scale · query · keyᵀ, -inf for keys that the mask excludes
  Tensor seen;    ///< bool [B, H, rows, keys]: those that it does not
  Tensor query;   ///< [B, H, rows, D]
  int64_t first_row = 0;  ///< the first row's index in the queries
  int64_t first_key =
      0;  ///< the first key's index; it and `keys` are multiples of 256, so some may not exist
};

/// The weights [B, H, rows, keys] of some rows, by ops on whatever there is in `rows`. Called several times, in the
/// backward again. Excluded keys, and weights too small for their full precision, become 0 whatever it says.
using RowWeights = std::function<Tensor(const ScoreRows& rows, const std::vector<Tensor>& inputs)>;

/// out = weights(scale · query · keyᵀ) · value.
///
///   const auto stick_breaking = [](const ScoreRows& rows, const auto&) {
///     const Tensor left = log_sigmoid(scale(rows.scores, -1));
///     return exp(add(log_sigmoid(rows.scores), sub(cumsum(left, 3, true), left)));
///   };
///   attention_rows(q, k, v, stick_breaking, {.mask = causal()});
///
/// Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> [B, H, Tq, Dv], H % Hkv == 0
/// Dtypes    f32, f64; bf16, f16: as f32
/// Gradient  query, key, value and `inputs`, which `weights` gets. What it reads otherwise must need none.
/// Memory    as many rows at a time as `weights` can take within a few MiB, at least 8, so O(T); the backward makes
///           the scores and weights again
/// Bits      of a row depend on the keys that its masks of bands, lengths and documents leave, rounded out to
///           multiples of 256, if the ops of `weights` give a row the same bits whatever rows come with it
/// Throws    ShapeError, DtypeError, ValueError
struct AttentionRowsOptions {
  Mask mask = {};
  std::optional<double> scale = {};  ///< default 1/sqrt(D)
  std::vector<Tensor> inputs = {};
};
Tensor attention_rows(const Tensor& query, const Tensor& key, const Tensor& value, const RowWeights& weights,
                      const AttentionRowsOptions& options = {});

}  // namespace multihead
