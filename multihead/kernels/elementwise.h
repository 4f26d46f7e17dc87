// Arithmetic on arrays: broadcast pairs, one-operand functions, sums, strided copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "multihead/core/shape.h"

namespace multihead::kernels {

enum class Binary { add, sub, mul, div };

/// Operands walked with strides in elements (0 broadcasts); the result is contiguous.
struct BroadcastLayout {
  Shape shape;
  Shape strides_a, strides_b;
};
void binary(Binary op, const float* a, const float* b, float* y, const BroadcastLayout& layout);
void binary(Binary op, const double* a, const double* b, double* y, const BroadcastLayout& layout);

enum class Unary { neg, exp, log, sqrt, tanh, sigmoid, square };

/// y = f(x); y may be x.
void unary(Unary op, const float* x, float* y, int64_t count);
void unary(Unary op, const double* x, double* y, int64_t count);
/// dx = dy · f'(x), where f' is computed from y for exp, sqrt, tanh and sigmoid and from x for the others:
/// `saved` is that one. dx may be dy.
void unary_backward(Unary op, const float* saved, const float* dy, float* dx, int64_t count);
void unary_backward(Unary op, const double* saved, const double* dy, double* dx, int64_t count);

/// y = factor · x + offset, in two roundings; y may be x.
void affine(const float* x, float* y, int64_t count, double factor, double offset);
void affine(const double* x, double* y, int64_t count, double factor, double offset);

/// Sum of all: fixed blocks of the array, added up in f64.
double sum(const float* x, int64_t count);
double sum(const double* x, int64_t count);

/// y[o, i] = Σ_n x[o, n, i]; blocks of 64 n are summed first, then the blocks in order.
struct AxisSum {
  int64_t outer = 1, axis = 1, inner = 1;
};
void sum_axis(const float* x, float* y, const AxisSum& sizes);
void sum_axis(const double* x, double* y, const AxisSum& sizes);

/// y[…] = mask[…] ? a[…] : b[…], all contiguous; null operands count as zero.
void select(const bool* mask, const float* a, const float* b, float* y, int64_t count);
void select(const bool* mask, const double* a, const double* b, double* y, int64_t count);

/// Copies elements of `element_bytes` (1, 2, 4 or 8) between strided arrays of one shape.
struct CopyLayout {
  Shape shape;
  Shape strides_from, strides_to;
  size_t element_bytes = 4;
};
void strided_copy(const void* from, void* to, const CopyLayout& layout);

}  // namespace multihead::kernels
