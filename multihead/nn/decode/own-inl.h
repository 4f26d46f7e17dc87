// Copy-on-write of caches. Internal to decode/.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead::nn {

/// Before the first write into memory that a copy of the state still reads.
inline void make_own(Tensor& x) {
  if (!x.is_unique()) x = x.clone();
}

}  // namespace multihead::nn
