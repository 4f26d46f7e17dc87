// Sizes of this CPU's caches.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// Bytes of a core's first data cache; 0: unknown.
int64_t l1_data_bytes();

}  // namespace multihead::kernels
