// Where the largest or smallest elements of rows are.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// places[r]: the first largest (or smallest) of the `count` >= 1 elements of row r, the first NaN if there is
/// one.
template <class T>
void extreme_places(const T* x, int64_t* places, int64_t rows, int64_t count, bool largest);

}  // namespace multihead::kernels
