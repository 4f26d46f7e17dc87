// Scores with valid lengths, as the five texts of docs/tutorials/texts.md write them. Attention needs
// neither: lengths() is a mask of its own, and what it excludes is not computed.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// scores[b, i, j] where j < valid_lens[b] (or valid_lens[b, i]), else `value`. A new tensor.
///
/// Shapes    scores [B, Tq, Tk], valid_lens i64 or i32 [B] or [B, Tq] -> [B, Tq, Tk]
/// Dtypes    f32, f64
/// Gradient  scores: 0 where they are replaced
/// Throws    ShapeError, DtypeError, ValueError (a length that is negative or above Tk)
/// Source    masked_X of the lecture notes
Tensor masked_scores(const Tensor& scores, const Tensor& valid_lens, double value = -1e6);

/// Softmax over the keys j < valid_lens[b] (or valid_lens[b, i]); 0 after them, whatever their scores are. A
/// length of 0 gives zeros and no gradient. Otherwise as masked_scores().
Tensor masked_softmax(const Tensor& scores, const Tensor& valid_lens);

}  // namespace multihead
