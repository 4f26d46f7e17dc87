#include "multihead/distributed/collectives.h"

namespace multihead::distributed {

void all_gather(Group& group, std::span<std::byte> data, size_t item, FunctionRef<int64_t(int rank)> begin) {
  const int size = group.size(), rank = group.rank();
  const auto part = [&](int of) {
    const int at = (of + size) % size;
    const auto first = static_cast<size_t>(begin(at)), last = static_cast<size_t>(begin(at + 1));
    return data.subspan(first * item, (last - first) * item);
  };
  for (int turn = 0; turn + 1 < size; ++turn) {
    group.sendrecv((rank + 1) % size, part(rank - turn), (rank - 1 + size) % size, part(rank - turn - 1));
  }
}

}  // namespace multihead::distributed
