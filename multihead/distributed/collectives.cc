#include "multihead/distributed/collectives.h"

namespace multihead::distributed {

void all_gather(Group& group, std::span<std::byte> data, std::span<const int64_t> bounds) {
  const int size = group.size(), rank = group.rank();
  const auto part = [&](int of) {
    const auto at = static_cast<size_t>((of + size) % size);
    return data.subspan(static_cast<size_t>(bounds[at]), static_cast<size_t>(bounds[at + 1] - bounds[at]));
  };
  for (int turn = 0; turn + 1 < size; ++turn) {
    group.sendrecv((rank + 1) % size, part(rank - turn), (rank - 1 + size) % size, part(rank - turn - 1));
  }
}

}  // namespace multihead::distributed
