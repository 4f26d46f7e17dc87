// How numbers are stored in blocks that share scales: the types of GGUF files, one row each.
//
// Source: https://github.com/ggml-org/ggml, ggml-common.h and ggml-quants.c. Decoded and encoded as the Python
// package `gguf` does, to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/dtype.h"

namespace multihead {

/// Neighbours in a block. Number k is d · (values[k] - offset) - m, where d = scale · factors[k / 16] and
/// m = min · min_factors[k / 16], each step rounded to f32.
struct BlockGroup {
  static constexpr int64_t kSize = 32;
  int8_t values[kSize] = {};
  int offset = 0;
  Float16 scale, min;
  int8_t factors[2] = {1, 1};
  int8_t min_factors[2] = {};  ///< 0: no minimum
};

struct BlockFormat {
  uint32_t id = 0;        ///< in GGUF files
  const char* name = "";  ///< "Q4_K"
  int64_t block = 1, bytes = 0;
  /// Decodes `blocks` blocks to f32.
  void (*decode)(const uint8_t* from, int64_t blocks, float* to) = nullptr;
  /// Decodes group i of a block; null: not in groups.
  BlockGroup (*group)(const uint8_t* block, int64_t i) = nullptr;
  /// The name of the packed format that takes it over without rounding (kernels/quantized/format.h).
  const char* packed_as = "";
  /// The reverse of decode(), for finite numbers; null: such files are read only.
  void (*encode)(const float* from, int64_t blocks, uint8_t* to) = nullptr;
  int64_t file_type = 0;  ///< GGUF's general.file_type if most tensors are of it; of those that are written

  double bits() const { return 8.0 * static_cast<double>(bytes) / static_cast<double>(block); }
};

/// All that can be read.
const std::vector<BlockFormat>& block_formats();

}  // namespace multihead
