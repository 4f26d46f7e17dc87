// Layer and RMS normalisation of rows, with the residual sum before them and their gradients.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"

namespace multihead::kernels {

/// y = (x - mean) · inv_std · weight + bias; without `mean` (RMS) the mean counts as 0.
template <class T>
struct NormArgs {
  int64_t rows = 0, size = 0;
  double eps = 0;
  const T* x = nullptr;
  const T* residual = nullptr;  ///< added to x first, if given
  T* sum = nullptr;             ///< x + residual
  const T* weight = nullptr;    ///< [size], ones if null
  const T* bias = nullptr;      ///< [size], zeros if null
  T* y = nullptr;
  T* mean = nullptr;     ///< [rows]; null for RMS
  T* inv_std = nullptr;  ///< [rows]

  const BFloat16* x16 = nullptr;     ///< f32: instead of x
  BFloat16* y16 = nullptr;           ///< f32 from x16 without a residual: instead of y
  BFloat16* normalized16 = nullptr;  ///< f32: (x - mean) · inv_std, rounded
};
void norm(const NormArgs<float>& args);
void norm(const NormArgs<double>& args);

/// dx = inv_std · (g - mean(g) - x̂ · mean(g ⊙ x̂)) + d_sum with g = dy ⊙ weight, x̂ = (x - mean) · inv_std;
/// RMS has no mean(g). d_weight = Σ dy ⊙ x̂, d_bias = Σ dy over the rows.
template <class T>
struct NormGradArgs {
  int64_t rows = 0, size = 0;
  const T* x = nullptr;  ///< what was normalised: the sum, if there was a residual
  const T* weight = nullptr;
  const T* mean = nullptr;
  const T* inv_std = nullptr;
  const T* dy = nullptr;
  const T* d_sum = nullptr;  ///< what else reaches the sum, or null
  T* dx = nullptr;           ///< may be dy or d_sum
  T* d_weight = nullptr;     ///< [size], or null
  T* d_bias = nullptr;       ///< [size], or null
  T* scratch = nullptr;      ///< norm_backward_scratch() elements

  const BFloat16* x16 = nullptr;  ///< f32: instead of x
  /// f32: x̂ itself, instead of x. The mean then only tells a layer norm from RMS.
  const BFloat16* normalized16 = nullptr;
};
int64_t norm_backward_scratch(int64_t rows, int64_t size);
void norm_backward(const NormGradArgs<float>& args);
void norm_backward(const NormGradArgs<double>& args);

/// y = normalized16 · weight + bias, of which the arguments say rows, size, weight, bias and y.
void norm_affine(const NormArgs<float>& args);

}  // namespace multihead::kernels
