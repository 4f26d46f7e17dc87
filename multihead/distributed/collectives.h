// What all ranks of a group do together, beyond Group's own.
#pragma once

#include "multihead/distributed/group.h"

namespace multihead::distributed {

/// `count` floats as a message.
inline std::span<std::byte> bytes_of(float* data, int64_t count) {
  return std::as_writable_bytes(std::span(data, static_cast<size_t>(count)));
}

/// Rank r has the bytes [bounds[r], bounds[r+1]) of `data`; afterwards every rank has all. A ring: each rank
/// sends data.size() less one part, whatever their number.
void all_gather(Group& group, std::span<std::byte> data, std::span<const int64_t> bounds);

/// The first of `count` items that rank `rank` of `size` has, where all have equal shares but for one.
constexpr int64_t share_begin(int64_t count, int size, int rank) { return count * rank / size; }

}  // namespace multihead::distributed
