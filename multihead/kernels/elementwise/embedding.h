// Rows of a table, and the sum of gradients back into it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace multihead::kernels {

/// Copies `row_bytes` of table[ids[i]] to row i of out. The ids must be in range.
void gather_rows(const void* table, const int64_t* ids, void* out, int64_t count, size_t row_bytes);

/// d_table [table_rows, size] = 0, then d_table[ids[i]] += d_out[i] in the order of i.
struct ScatterArgs {
  const int64_t* ids = nullptr;
  int64_t count = 0;
  int64_t table_rows = 0, size = 0;
};
void scatter_add_rows(const float* d_out, float* d_table, const ScatterArgs& args);
void scatter_add_rows(const double* d_out, double* d_table, const ScatterArgs& args);

}  // namespace multihead::kernels
