// Activation functions over arrays. In f64 plain loops over the C library's functions.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"

namespace multihead::kernels {

enum class Activation { none, relu, gelu, gelu_tanh, silu };

/// y = f(x), from f32 to f32, from bf16 to either; y may be x.
template <class From, class To>
void activate(Activation activation, const From* x, To* y, int64_t count);
void activate(Activation activation, const double* x, double* y, int64_t count);

/// dx = dy · f'(x) for x of f32 or bf16; dx may be x or dy.
template <class From>
void activate_backward(Activation activation, const From* x, const float* dy, float* dx, int64_t count);
void activate_backward(Activation activation, const double* x, const double* dy, double* dx, int64_t count);

/// y = f(x), slope = f'(x) at the price of little more than one of them, for x of f32 or bf16; y or slope may
/// be x.
template <class T>
void activate_with_slope(Activation activation, const T* x, T* y, float* slope, int64_t count);
void activate_with_slope(Activation activation, const double* x, double* y, double* slope, int64_t count);

/// Rows of gate and up lie `stride` apart (halves of one matrix, or matrices of their own); rows of the
/// result are contiguous.
struct GatedRows {
  int64_t count = 0, size = 0;
  int64_t stride = 0;
};

/// y = f(gate) · up, all of f32 or bf16.
template <class T>
void gated(Activation activation, const T* gate, const T* up, T* y, const GatedRows& rows);
void gated(Activation activation, const double* gate, const double* up, double* y, const GatedRows& rows);

/// d_gate = dy · up · f'(gate), d_up = dy · f(gate), with the strides of gate and up (f32 or bf16).
template <class T>
struct GatedGradients {
  const T* dy;
  T* d_gate;
  T* d_up;
};
template <class T>
void gated_backward(Activation activation, const T* gate, const T* up, const GatedGradients<float>& gradients,
                    const GatedRows& rows);
void gated_backward(Activation activation, const double* gate, const double* up,
                    const GatedGradients<double>& gradients, const GatedRows& rows);

}  // namespace multihead::kernels
