// Operations of all ranks of a group, beyond Group's own.
#pragma once

#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/group.h"

namespace multihead::distributed {

/// `count` floats as a message.
inline std::span<std::byte> bytes_of(float* data, int64_t count) {
  return std::as_writable_bytes(std::span(data, static_cast<size_t>(count)));
}

/// Rank r has the items [begin(r), begin(r + 1)) of `data`; afterwards every rank has all. A ring: each rank
/// sends all but one part, whatever their number.
void all_gather(Group& group, std::span<std::byte> data, size_t item, FunctionRef<int64_t(int rank)> begin);
template <class T>
void all_gather(Group& group, std::span<T> data, FunctionRef<int64_t(int rank)> begin) {
  all_gather(group, std::as_writable_bytes(data), sizeof(T), begin);
}

/// The first of `count` items that rank `rank` of `size` has, where all have equal shares but for one.
constexpr int64_t share_begin(int64_t count, int size, int rank) { return count * rank / size; }

}  // namespace multihead::distributed
