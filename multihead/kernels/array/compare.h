// Comparisons of arrays.
#pragma once

#include <cstdint>

namespace multihead::kernels {

enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal };

/// y[i] = a[i] op b[i], for float, double, int32_t, int64_t and bool. False with NaN, but for not_equal.
template <class T>
void compare(Comparison op, const T* a, const T* b, bool* y, int64_t count);

}  // namespace multihead::kernels
