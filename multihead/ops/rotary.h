// Rotary position embedding (Su et al. 2021, "RoFormer").
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"

namespace multihead {

/// Which elements of a head form a rotated pair, for R rotated dimensions.
enum class RotaryLayout {
  halves,       ///< (i, i + R/2): GPT-NeoX, Hugging Face Llama
  interleaved,  ///< (2i, 2i + 1): GPT-J, Meta's Llama
};
constexpr auto enum_words(RotaryLayout) { return std::to_array<std::string_view>({"halves", "interleaved"}); }

/// Frequency scaling for texts longer than in pre-training.
struct RotaryScaling {
  enum class Kind {
    none,
    linear,  ///< all divided by factor (Chen et al. 2023)
    llama3,  ///< long wavelengths divided by factor, short ones kept, interpolated between (Llama 3.1)
    yarn,    ///< the same with a ramp over the dimensions, and scaled sines (Peng et al. 2023)
  };
  Kind kind = Kind::none;
  double factor = 1;             ///< how many times longer, >= 1
  int64_t original_context = 0;  ///< llama3, yarn: context of pre-training
  /// llama3: wavelengths above original_context / low_freq_factor are long, those below
  /// original_context / high_freq_factor short.
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;  ///< yarn: rotations in original_context at the ramp's start, end
  double attention_factor = 0;           ///< yarn: factor of sines and cosines; 0: 0.1 ln(factor) + 1
  bool truncate = true;                  ///< yarn: the ramp starts and ends at integer dimensions

  bool operator==(const RotaryScaling&) const = default;
};
constexpr auto enum_words(RotaryScaling::Kind) {
  return std::to_array<std::string_view>({"none", "linear", "llama3", "yarn"});
}

/// Throws ValueError naming the invalid field.
void check(const RotaryScaling& scaling);

/// Cosines and sines of angles, [B or 1, T, R/2] each, f32.
struct RotaryTable {
  Tensor cos, sin;
  RotaryLayout layout = RotaryLayout::halves;
};

/// w_k = base^(-2k/R), k < R/2. Throws ValueError unless R is positive and even and base > 0.
std::vector<double> rotary_frequencies(int64_t rotary_dim, double base = 10000);
/// The same, scaled. Throws ValueError as check().
std::vector<double> rotary_frequencies(int64_t rotary_dim, double base, const RotaryScaling& scaling);
/// The factor of sines and cosines: 1 except for yarn.
double rotary_amplitude(const RotaryScaling& scaling);

/// Angles position · w_k in f64; `starts` holds the position of the first token, one for all or one per row.
/// Cosines and sines are multiplied by `amplitude`.
RotaryTable rotary_table(int64_t length, const std::vector<int64_t>& starts,
                         const std::vector<double>& frequencies, RotaryLayout layout = RotaryLayout::halves,
                         double amplitude = 1);

/// Rotates the first R dimensions of the first `heads` heads (default: all) and copies the rest.
///
/// Shapes    x [B, T, N, D] (any strides, last axis contiguous), R <= D -> [B, T, N, D]
/// Dtypes    f32, f64 (angles as in f32, good to 6e-8); bf16, f16: as f32, rounded once
/// Gradient  x
/// Throws    ShapeError, DtypeError
Tensor rotary(const Tensor& x, const RotaryTable& table, int64_t heads = -1);

namespace detail {

/// Rotates one token's heads [heads, head_dim] in place, with the bits of rotary().
struct HeadRotation {
  int64_t heads = 0, head_dim = 0, pairs = 0;
  RotaryLayout layout = RotaryLayout::halves;
};
void rotate_in_place(float* x, const float* cos, const float* sin, const HeadRotation& rotation);

}  // namespace detail

}  // namespace multihead
