// Linear layers whose weights were laid out once, for inference.
#pragma once

#include <cstdint>
#include <string_view>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/matmul/gemm.h"

namespace multihead::kernels {

/// What a packed weight is made of, and how its products are added.
///   f32   as it is
///   bf16, f16  rounded to nearest, ties to even
///   int8  w ≈ scale · q per output, scale = max|w| / 127; the inputs are quantised per row in the same way
///   q8    per group of 32 along k: w ≈ scale · q, |q| <= 127, scale in f16 (GGUF's Q8_0): 8.5 bits a weight
///   q4    per group of 32: w ≈ scale · q + min, 0 <= q <= 15, both in f16 (GGUF's Q4_1): 5 bits
///   q4_k, q5_k, q6_k  GGUF's Q4_K, Q5_K and Q6_K, taken over from there only: 4.6, 5.6 and 6.6 bits
/// q is rounded to nearest, ties to even. With q8, q4 and those of GGUF the inputs are quantised per group as
/// int8 does per row. Within rows or groups integers are summed; the groups' sums, scaled, are added in order
/// of k.
enum class WeightDtype { f32, bf16, f16, int8, q8, q4, q4_k, q5_k, q6_k };
/// Those that a weight in f32 can be packed as.
inline constexpr std::string_view kWeightDtypes[] = {"f32", "bf16", "f16", "int8", "q8", "q4"};
std::string_view name(WeightDtype dtype);
/// Throws ValueError unless `text` is one of kWeightDtypes.
WeightDtype parse_weight_dtype(std::string_view text);

/// The longest sum of int8 products that an int32 holds for certain.
inline constexpr int64_t kLongestInt8Sum = 131072;
/// Neighbours along k that share the scale of q8 and q4.
inline constexpr int64_t kWeightGroup = 32;
/// Whether it is 16 bits of a float.
constexpr bool is_half(WeightDtype dtype) { return dtype == WeightDtype::bf16 || dtype == WeightDtype::f16; }
/// Whether it is in groups along k: q8, q4, q4_k, q5_k, q6_k.
constexpr bool has_groups(WeightDtype dtype) { return dtype >= WeightDtype::q8; }
/// Whether it is one of GGUF's K formats, whose groups share a scale in blocks of kWeightBlock along k.
constexpr bool has_blocks(WeightDtype dtype) { return dtype >= WeightDtype::q4_k; }
inline constexpr int64_t kWeightBlock = 256;

/// Bytes that a packed weight [out, in] takes, a multiple of 64.
int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in);
/// Copies weight [out, in], rows `stride` apart, into the order in which packed_linear() reads it. In f32 the
/// order depends on the instruction set, else it is the same on every machine. `packed` is aligned to 64
/// bytes; with int8 `in` is at most kLongestInt8Sum.
void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed);

/// A weight [out, in] as GGUF files store it: f16, Q8_0, Q4_0 or Q4_1, Q4_K, Q5_K, Q6_K.
struct StoredWeight {
  /// Writes rows [begin, begin + count) to `to`. Called by several threads at once.
  FunctionRef<void(int64_t begin, int64_t count, uint8_t* to)> read;
  WeightDtype dtype = WeightDtype::q8;  ///< f16 or one with groups
  bool has_min = true;                  ///< q4: Q4_1; without: Q4_0, whose minimum is -8 · scale
};
/// Takes it over without rounding (-8 · scale is rounded where f16 ends). Values past `in` are ignored.
void pack_stored(const StoredWeight& weight, int64_t out, int64_t in, void* packed);
/// Output `row` of a weight [out, in] packed as anything but int8, in f32: to[in].
void unpack_weight_row(WeightDtype dtype, const void* packed, int64_t row, int64_t out, int64_t in,
                       float* to);

struct PackedLinearArgs {
  const float* x = nullptr;  ///< [rows, in], rows ldx apart
  int64_t ldx = 0;
  const void* packed = nullptr;
  WeightDtype dtype = WeightDtype::f32;  ///< of `packed`
  float* y = nullptr;                    ///< [rows, out], rows ldy apart
  int64_t ldy = 0;
  int64_t rows = 0, out = 0, in = 0;
  const float* bias = nullptr;  ///< [out]
  Activation activation = Activation::none;
  const float* residual = nullptr;  ///< [rows, out], rows ldy apart; may not be y
};

/// y = activation(x · weightᵀ + bias) + residual.
///
/// f32 has the bits of gemm(), f16 those of gemm() of the widened weight, bf16 those of gemm_mixed() of a
/// bf16 weight. The others have, without an activation or with relu, the same bits on every instruction set,
/// and a row the same bits alone and among others. There a NaN or an infinity in a row of x makes the row's
/// products NaN, one in a row of the weight its output's; and a row of x (in groups: a group of it) whose
/// largest element is below 2^-119 counts as zeros.
void packed_linear(const PackedLinearArgs& args);

}  // namespace multihead::kernels
