// Rotary position embedding (Su et al. 2021, "RoFormer").
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor.h"

namespace multihead {

/// Which elements of a head form a rotated pair, for R rotated dimensions.
enum class RotaryLayout {
  halves,       ///< (i, i + R/2): GPT-NeoX, Hugging Face Llama
  interleaved,  ///< (2i, 2i + 1): GPT-J, Meta's Llama
};

/// Cosines and sines of angles, [B or 1, T, R/2] each, f32.
struct RotaryTable {
  Tensor cos, sin;
  RotaryLayout layout = RotaryLayout::halves;
};

/// w_k = base^(-2k/R), k < R/2. Throws ValueError unless R is positive and even and base > 0.
std::vector<double> rotary_frequencies(int64_t rotary_dim, double base = 10000);

/// Angles position · w_k in f64; `starts` holds the position of the first token, one for all or one per row.
RotaryTable rotary_table(int64_t length, const std::vector<int64_t>& starts,
                         const std::vector<double>& frequencies, RotaryLayout layout = RotaryLayout::halves);

/// Rotates the first R dimensions of the first `heads` heads (default: all) and copies the rest.
///
/// Shapes    x [B, T, N, D] (any strides, last axis contiguous), R <= D -> [B, T, N, D]
/// Dtypes    f32, f64
/// Gradient  x
/// Throws    ShapeError, DtypeError
Tensor rotary(const Tensor& x, const RotaryTable& table, int64_t heads = -1);

}  // namespace multihead
