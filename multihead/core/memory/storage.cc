#include "multihead/core/memory/storage.h"

#include <pthread.h>

#include <atomic>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/memory/block_cache-inl.h"
#include "multihead/core/memory/spoiled-inl.h"

namespace multihead {
namespace {

// Never destroyed: tensors in static variables outlive any other static.
BlockCache& cache() {
  static BlockCache* instance = [] {
    auto* created = new BlockCache;
    // A fork holds the lock: the child finds the cache whole and the lock free, whatever other threads did.
    pthread_atfork([] { cache().lock(); }, [] { cache().unlock(); }, [] { cache().unlock(); });
    return created;
  }();
  return *instance;
}

std::atomic<int> spoiled{0};  // scopes that are alive

}  // namespace

detail::SpoiledMemory::SpoiledMemory() { ++spoiled; }
detail::SpoiledMemory::~SpoiledMemory() { --spoiled; }

Storage::Storage(size_t bytes) : bytes_(bytes) {
  MH_CHECK(bytes < (uint64_t{1} << 48), ValueError, "tensor: ", bytes, " bytes are beyond the address space");
  block_ = cache().take(bytes);
  data_ = block_->data;
  if (spoiled.load(std::memory_order_relaxed) != 0) std::memset(data_, 0xFF, bytes);
}

Storage::Storage(void* data, size_t bytes, std::shared_ptr<void> owner)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), owner_(std::move(owner)) {}

Storage::~Storage() {
  if (block_ != nullptr) cache().give(block_);
}

MemoryStats memory_stats() { return cache().stats(); }
void reset_peak_memory() { cache().reset_peak(); }
void release_cached_memory() { cache().release(); }

}  // namespace multihead
