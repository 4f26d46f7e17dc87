// The order of the elements of rows. NaN counts as the largest number; equal elements keep their order.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// index[r, 0..count) are the places of the `count` first elements of row r of x [rows, size], sorted.
void order(const float* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending);
void order(const double* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending);
void order(const int32_t* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending);
void order(const int64_t* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending);

}  // namespace multihead::kernels
