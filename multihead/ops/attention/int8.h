// Attention to keys and values of 8 bits, as a decoder may cache them.
#pragma once

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

/// Rows of 8 bits: x ≈ q · scale with scale = max|x| / 127 of the row, q to nearest even. A quarter of the
/// memory of f32, and 4 bytes a row.
///
/// Shapes    x [..., D], D a multiple of 4 -> [..., D / 4 + 1], words of four q and the scale
/// Dtypes    floating -> i32
/// Gradient  none
/// Throws    DtypeError, ShapeError
Tensor to_int8_rows(const Tensor& x);
/// q · scale. Shapes [..., W] -> [..., 4 · (W - 1)], dtypes i32 -> f32. Throws DtypeError, ShapeError.
Tensor from_int8_rows(const Tensor& rows);

/// attention(query, from_int8_rows(key), from_int8_rows(value), options, score_mod) with the same bits, the
/// rows read as they lie.
///
/// Dtypes    query f32, key and value i32
/// Gradient  none
/// Throws    as attention()
Tensor attention_int8(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

}  // namespace multihead
