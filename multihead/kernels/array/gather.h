// Elements by their indices, and the sums that are the gradients. Indices are in [0, size).
#pragma once

#include <cstddef>
#include <cstdint>

namespace multihead::kernels {

/// x is [outer, size, inner]; the result is [outer, count, inner].
struct GatherSizes {
  int64_t outer, size, count, inner;
};

/// y[o, j, :] = x[o, index[j], :], elements of `element` bytes.
void take(const void* x, const int64_t* index, void* y, const GatherSizes& sizes, size_t element);
/// y[o, j, i] = x[o, index[o, j, i], i].
void take_along(const void* x, const int64_t* index, void* y, const GatherSizes& sizes, size_t element);

/// dx[o, index[j], :] += dy[o, j, :], for j in increasing order.
void take_backward(const float* dy, const int64_t* index, float* dx, const GatherSizes& sizes);
void take_backward(const double* dy, const int64_t* index, double* dx, const GatherSizes& sizes);
/// dx[o, index[o, j, i], i] += dy[o, j, i], for j in increasing order.
void take_along_backward(const float* dy, const int64_t* index, float* dx, const GatherSizes& sizes);
void take_along_backward(const double* dy, const int64_t* index, double* dx, const GatherSizes& sizes);

}  // namespace multihead::kernels
