// The loops over elements that are worth an instruction set. Core, which lies below the kernels, has plain
// ones; kernels/elementwise/element_loops.cc puts its own here before main. Results are the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "multihead/core/dtype.h"
#include "multihead/core/tensor/rng.h"

namespace multihead::detail {

struct TransposeArgs {
  const void* from;                           // [rows, columns]
  void* to;                                   // [columns, rows]
  int64_t from_step, to_step, rows, columns;  // steps between rows, in elements
};

struct ElementLoops {
  /// to[i] = from[i] for two floating types; false if it cannot.
  bool (*convert)(Dtype from_type, const void* from, Dtype to_type, void* to, int64_t count);
  /// Transposes elements of 1, 2, 4 or 8 bytes.
  void (*transpose)(size_t element_bytes, const TransposeArgs& args);
  /// The 64 words of each group of 16 blocks of a stream: word w of block b at 16 w + b.
  void (*random_words)(const RandomStream& stream, int64_t first_group, int64_t groups, uint32_t* words);
  /// The 32 uniform numbers in [low, high) of a group's words; false if it cannot.
  bool (*uniform_floats)(const uint32_t* words, double low, double high, float* numbers);
  /// The 32 normal numbers of a group's words; false if it cannot tell their last bit.
  bool (*normal_floats)(const uint32_t* words, double mean, double std, float* numbers);
};

void transpose_plain(size_t element_bytes, const TransposeArgs& args);
void random_words_plain(const RandomStream& stream, int64_t first_group, int64_t groups, uint32_t* words);

inline ElementLoops element_loops = {[](Dtype, const void*, Dtype, void*, int64_t) { return false; },
                                     transpose_plain, random_words_plain,
                                     [](const uint32_t*, double, double, float*) { return false; },
                                     [](const uint32_t*, double, double, float*) { return false; }};

}  // namespace multihead::detail
