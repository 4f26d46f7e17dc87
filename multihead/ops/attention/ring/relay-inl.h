// Tensors that travel from rank to rank while each works on them. Internal to ops.
#pragma once

#include <functional>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/distributed/group.h"

namespace multihead::detail {

/// A chunk and the ranks that see it, its owner first, who has it. It spreads over them in a binomial tree:
/// all wait for the last of each, and that is then log2 R messages away. In a ring it would be R - 1.
struct Journey {
  int chunk = 0;
  int part = 0;  ///< of the chunk, if it travels in several
  std::vector<int> ranks;
};

/// This rank's part in the journeys that pass it.
struct Stops {
  /// The tensors of a journey: the owner's contiguous copies, the others' memory.
  std::function<std::vector<Tensor>(const Journey& journey)> memory;
  std::function<void(const Journey& journey, const std::vector<Tensor>& tensors)> use;
};

/// Uses all tensors in the order of the journeys, which is the same on every rank. The next one's arrive
/// meanwhile: two journeys' memory at most. Messages have tags from 16,384 to 32,000.
void relay(distributed::Group& group, const std::vector<Journey>& journeys, const Stops& stops);

/// The ranks after an owner in cyclic order whom `needs` names: those of a Journey.
std::vector<int> ranks_after(int owner, int ranks, const std::function<bool(int rank)>& needs);

/// The bits of `mine` that every rank has set. Two bytes for every rank but the first.
std::byte set_everywhere(distributed::Group& group, std::byte mine);

/// Bytes of a contiguous tensor.
std::span<std::byte> bytes_of(const Tensor& x);

}  // namespace multihead::detail
