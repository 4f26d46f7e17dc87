// The formats of packed weights: one row each, which everything that differs between them is read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/blocks.h"

namespace multihead::kernels {

/// Storage format of a packed weight, and the order in which its products are added.
///   f32   as it is
///   bf16, f16  rounded to nearest, ties to even
///   int8  w ≈ scale · q per output, scale = max|w| / 127; the inputs are quantised per row in the same way
///   q8    per group of 32 along k: w ≈ scale · q, |q| <= 127, scale in f16 (GGUF's Q8_0): 8.5 bits a weight
///   q5    per group of 32: w ≈ scale · q + min, 0 <= q <= 31, both in f16 (GGUF's Q5_1): 6 bits
///   q4    the same with 0 <= q <= 15 (GGUF's Q4_1): 5 bits
///   q4_k, q5_k, q6_k  GGUF's Q4_K, Q5_K and Q6_K, taken over from there only: 4.6, 5.6 and 6.6 bits
/// q is rounded to nearest, ties to even. In groups the inputs are quantised per group as int8 does per row.
/// Within rows or groups integers are summed; the groups' sums, scaled, are added in order of k.
enum class WeightDtype { f32, bf16, f16, int8, q8, q5, q4, q4_k, q5_k, q6_k };

/// The longest sum of int8 products that an int32 holds for certain.
inline constexpr int64_t kLongestInt8Sum = 131072;
/// Neighbours along k that share a scale.
inline constexpr int64_t kWeightGroup = 32;
/// Neighbours along k whose groups share a scale in GGUF's K formats.
inline constexpr int64_t kWeightBlock = 256;

/// Groups along k, and what is stored of each; groups.h has their layout in memory.
struct GroupFormat {
  int bits = 0;  ///< of a value: 8 with a sign; 4, 5, 6 without one; 0: not in groups
  bool has_min = false;
  bool in_blocks = false;  ///< scales are bytes times the block's scale; without a minimum, one per half

  constexpr bool operator==(const GroupFormat&) const = default;
  /// Packed values are unsigned; w is scale · (value - middle).
  constexpr int middle() const { return bits < 8 && !has_min ? 1 << (bits - 1) : 0; }
  constexpr bool has_two_scales() const { return in_blocks && !has_min; }
};

struct PackedLinearArgs;
struct StoredWeight;
struct WeightFormat;

/// How formats of one kind are packed and multiplied: f32.cc, half.cc, int8.cc, groups.cc.
struct FormatFunctions {
  int64_t (*bytes)(const WeightFormat&, int64_t out, int64_t in);
  void (*pack)(const WeightFormat&, const float* weight, int64_t stride, int64_t out, int64_t in, void* to);
  void (*multiply)(const WeightFormat&, const PackedLinearArgs& args);
  /// Null: rows cannot be read alone.
  void (*unpack_row)(const WeightFormat&, const void* packed, int64_t row, int64_t out, int64_t in,
                     float* to);
  /// Null: blocks of files are not taken over.
  void (*pack_stored)(const WeightFormat&, const StoredWeight& from, int64_t out, int64_t in, void* to);
  bool is_portable = true;  ///< the same bytes on every machine
  bool is_float = false;    ///< embedding and output layer are packed so too; else as q8
};
extern const FormatFunctions f32_functions, half_functions, int8_functions, group_functions;

struct WeightFormat {
  WeightDtype dtype;
  std::string_view name;
  const FormatFunctions* functions;
  GroupFormat groups = {};
  float beyond = 0;         ///< the least magnitude that is too large for it; 0: none is
  int64_t longest_row = 0;  ///< 0: any

  /// Whether f32 weights can be packed so; else only blocks of GGUF files.
  constexpr bool of_floats() const { return !groups.in_blocks; }
  bool has_rows() const { return functions->unpack_row != nullptr; }
};

/// By WeightDtype.
inline constexpr WeightFormat kWeightFormats[] = {
    {WeightDtype::f32, "f32", &f32_functions},
    {WeightDtype::bf16, "bf16", &half_functions},
    {WeightDtype::f16, "f16", &half_functions, {}, 65520},
    {WeightDtype::int8, "int8", &int8_functions, {}, 0, kLongestInt8Sum},
    {WeightDtype::q8, "q8", &group_functions, {8}},
    {WeightDtype::q5, "q5", &group_functions, {5, true}},
    {WeightDtype::q4, "q4", &group_functions, {4, true}},
    {WeightDtype::q4_k, "q4_k", &group_functions, {4, true, true}},
    {WeightDtype::q5_k, "q5_k", &group_functions, {5, true, true}},
    {WeightDtype::q6_k, "q6_k", &group_functions, {6, false, true}},
};

constexpr const WeightFormat& format_of(WeightDtype dtype) {
  return kWeightFormats[static_cast<size_t>(dtype)];
}
inline std::string_view name(WeightDtype dtype) { return format_of(dtype).name; }
/// The dtype that takes over blocks of this format without rounding, if there is one.
std::optional<WeightDtype> packed_dtype_of(const BlockFormat& format);
/// The names of those that f32 weights can be packed as.
std::vector<std::string> weight_dtype_names();
/// Throws ValueError unless `text` is one of weight_dtype_names().
WeightDtype parse_weight_dtype(std::string_view text);

}  // namespace multihead::kernels
