// Softmax of rows, its logarithm, and their gradients.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"

namespace multihead::kernels {

/// `count` rows of `size` elements, one after the other.
struct Rows {
  int64_t count = 0, size = 0;
};

/// y = exp(x - max) / sum; a row of -inf gives zeros. y may be x.
void softmax(const float* x, float* y, Rows rows);
void softmax(const double* x, double* y, Rows rows);
/// `exact` is y before rounding, or null.
void softmax(const BFloat16* x, BFloat16* y, float* exact, Rows rows);
/// dx = y ⊙ (dy - ⟨dy, y⟩); dx may be dy.
void softmax_backward(const float* y, const float* dy, float* dx, Rows rows);
void softmax_backward(const double* y, const double* dy, double* dx, Rows rows);

/// y = x - max - log(sum(exp(x - max))); a row of -inf stays so. y may be x.
void log_softmax(const float* x, float* y, Rows rows);
void log_softmax(const double* x, double* y, Rows rows);
/// dx = dy - exp(y) · sum(dy); dx may be dy.
void log_softmax_backward(const float* y, const float* dy, float* dx, Rows rows);
void log_softmax_backward(const double* y, const double* dy, double* dx, Rows rows);

}  // namespace multihead::kernels
