// Arithmetic on arrays: broadcast pairs, one-operand functions, choices.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"
#include "multihead/core/shape.h"
#include "multihead/kernels/elementwise/unary_functions.h"

namespace multihead::kernels {

/// maximum and minimum: NaN if one is. pow: by f64, one at a time.
enum class Binary { add, sub, mul, div, maximum, minimum, pow };

/// Operands walked with strides in elements (0 broadcasts); the result is contiguous.
struct BroadcastLayout {
  Shape shape;
  Shape strides_a, strides_b;
};
void binary(Binary op, const float* a, const float* b, float* y, const BroadcastLayout& layout);
/// Computed in f32, rounded once.
void binary(Binary op, const BFloat16* a, const BFloat16* b, BFloat16* y, const BroadcastLayout& layout);
void binary(Binary op, const double* a, const double* b, double* y, const BroadcastLayout& layout);

enum class Unary {
#define MH_UNARY(name, ...) name,
  MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
};
/// Whether the derivative is computed from the result.
bool is_from_result(Unary op);

/// y = f(x); y may be x.
void unary(Unary op, const float* x, float* y, int64_t count);
void unary(Unary op, const double* x, double* y, int64_t count);
/// dx = dy · f'(x), where f' is computed from `saved`: y if is_from_result(op), else x. dx may be dy.
void unary_backward(Unary op, const float* saved, const float* dy, float* dx, int64_t count);
void unary_backward(Unary op, const double* saved, const double* dy, double* dx, int64_t count);

/// y = factor · x + offset, in two roundings; y may be x.
void affine(const float* x, float* y, int64_t count, double factor, double offset);
void affine(const double* x, double* y, int64_t count, double factor, double offset);

/// y[…] = mask[…] ? a[…] : b[…], all contiguous; null operands count as zero.
void select(const bool* mask, const float* a, const float* b, float* y, int64_t count);
void select(const bool* mask, const double* a, const double* b, double* y, int64_t count);

}  // namespace multihead::kernels
