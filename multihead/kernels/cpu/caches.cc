#include "multihead/kernels/cpu/caches.h"

#include <unistd.h>

namespace multihead::kernels {

int64_t l1_data_bytes() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  return bytes > 0 ? bytes : 0;
#else
  return 0;
#endif
}

}  // namespace multihead::kernels
