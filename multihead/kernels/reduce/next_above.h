// A scan for the next value that beats a threshold: how sampling and beam search pass over a vocabulary.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// The first index in [begin, end) whose x is above the threshold, or end. NaN never is.
int64_t next_above(const float* x, int64_t begin, int64_t end, float threshold);

}  // namespace multihead::kernels
