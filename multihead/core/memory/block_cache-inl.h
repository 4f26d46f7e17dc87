// The memory of tensors: blocks cut from large segments, and joined with their neighbours when they are given
// back.
//
// A request takes the smallest free block that holds it and leaves the rest free, so tensors of all sizes use
// the memory of those before them: bf16 and f32 of one training step, batches of other lengths.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

#include "multihead/core/memory/storage.h"

namespace multihead {

struct MemoryBlock;

struct BySize {
  using is_transparent = void;
  bool operator()(const MemoryBlock* x, const MemoryBlock* y) const;
  bool operator()(const MemoryBlock* x, size_t bytes) const;
};

using FreeBlocks = std::set<MemoryBlock*, BySize>;

/// A part of a segment.
struct MemoryBlock {
  std::byte* data = nullptr;
  size_t bytes = 0;
  FreeBlocks* pool = nullptr;                       ///< where it lies when free
  MemoryBlock *before = nullptr, *after = nullptr;  ///< its neighbours in the segment
  FreeBlocks::node_type place = {};  ///< kept while it is taken, so that giving it back cannot fail

  bool is_free() const { return place.empty(); }
};

class BlockCache {
 public:
  BlockCache() = default;
  ~BlockCache() { release_locked(); }
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// At least `bytes`, on a cache line. Throws std::bad_alloc when out of memory; MemoryError, before
  /// allocation, if a large block is larger than what is available.
  MemoryBlock* take(size_t bytes);
  void give(MemoryBlock* block) noexcept;

  MemoryStats stats();
  void reset_peak();
  /// Whole segments and the pages of other free blocks go back to the system.
  void release();

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  MemoryBlock* take_locked(size_t bytes);
  void add_spare();
  /// The rest of a block that is taken becomes a free one.
  void cut(MemoryBlock* block, size_t bytes);
  /// A block that is taken grows by its neighbour, which is taken too, and becomes a spare.
  void join_next(MemoryBlock* block);
  FreeBlocks::iterator add_segment(FreeBlocks& pool, size_t bytes);
  void release_locked();

  std::mutex mutex_;
  MemoryBlock* spares_ = nullptr;    // for cuts, linked by `after`: no call of malloc for tensor after tensor
  std::array<FreeBlocks, 2> pools_;  // small blocks would keep segments of large ones from going back
  MemoryStats stats_;
};

}  // namespace multihead
