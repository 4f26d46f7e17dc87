// y += x, the one operation the tape itself needs.
#pragma once

#include <cstdint>

namespace multihead::kernels {

void accumulate(float* y, const float* x, int64_t count);
void accumulate(double* y, const double* x, int64_t count);

}  // namespace multihead::kernels
