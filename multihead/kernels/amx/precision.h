// How precise f32 matrix products have to be, in PyTorch's words.
#pragma once

#include <string_view>

namespace multihead::kernels {

/// On CPUs with AMX tiles an f32 product may run on tiles, each number as a sum of bf16 parts:
///   highest        f32 multiply-adds, the same bits on every CPU with FMA (the default)
///   high           two parts, three products: rms error about 5e-6 of the result
///   medium         one part, one product: as if both operands were bf16
///   highest_tiles  three parts, six products: as accurate as f32, with other last bits
/// Without tiles the words change nothing. With them numbers below the smallest normal one count as zero; Inf
/// and NaN arise where f32 arithmetic has them. Attention follows them forward and backward.
enum class MatmulPrecision { highest, high, medium, highest_tiles };

/// The process's setting.
MatmulPrecision float32_matmul_precision();
/// Not to be called while kernels run.
void set_float32_matmul_precision(MatmulPrecision precision);

std::string_view precision_name(MatmulPrecision precision);
/// Throws ValueError unless `name` is one of the four words.
MatmulPrecision parse_precision(std::string_view name);

/// Whether this CPU has bf16 tiles, the system lets this process use them, and current_isa() is avx512.
bool has_tiles();

/// Whether products of bf16 run on tiles: has_tiles(), unless set_bf16_dots(false) has them widened.
bool bf16_tiles();

/// Whether products of int8 run on tiles: has_tiles(), if the tiles know bytes and int8_dots() holds. The
/// bits are the same.
bool int8_tiles();

}  // namespace multihead::kernels
