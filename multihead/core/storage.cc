#include "multihead/core/storage.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "multihead/core/error.h"
#include "multihead/core/memory.h"

namespace multihead {
namespace {

constexpr size_t kAlignment = 64;
// From here on, asking what is left (some 50 us) is nothing beside the time to fill the block.
constexpr int64_t kLarge = 64 << 20;

// From here on blocks begin with a large page, if the system has any: streams of 4 bits from one core gain a
// tenth.
constexpr size_t kLargePage = 2 << 20, kPaged = 2 * kLargePage;

void* system_block(size_t capacity) {
  if (capacity < kPaged) return std::aligned_alloc(kAlignment, capacity);
  void* block = nullptr;  // aligned_alloc() takes multiples of the alignment only
  if (posix_memalign(&block, kLargePage, capacity) != 0) return nullptr;
  madvise(block, capacity, MADV_HUGEPAGE);  // where it is refused, pages are small
  return block;
}

// Sizes are rounded up to eighths of a power of two, so a block serves requests up to 12.5 % smaller and
// batches of slightly different length still find their blocks again.
size_t rounded_capacity(size_t bytes) {
  const size_t floor = std::max<size_t>(bytes, 512);
  const size_t step = std::max(std::bit_floor(floor) / 8, kAlignment);
  return (floor + step - 1) / step * step;
}

class Cache {
 public:
  void* take(size_t capacity) {
    const std::lock_guard lock(mutex_);
    const int64_t peak = stats_.peak_bytes;
    stats_.live_bytes += static_cast<int64_t>(capacity);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    if (const auto it = free_.find(capacity); it != free_.end()) {
      void* block = it->second;
      free_.erase(it);
      stats_.cached_bytes -= static_cast<int64_t>(capacity);
      return block;
    }
    // A new shape must not pile up on blocks of old shapes: what is held never passes the peak demand by more
    // than an eighth (at least 16 MiB).
    const int64_t limit = stats_.peak_bytes + std::max<int64_t>(stats_.peak_bytes / 8, 16 << 20);
    if (stats_.live_bytes + stats_.cached_bytes > limit) release_locked();
    try {
      return allocate_locked(capacity);
    } catch (...) {
      stats_.live_bytes -= static_cast<int64_t>(capacity);
      stats_.peak_bytes = peak;
      throw;
    }
  }

  void give(void* block, size_t capacity) noexcept {
    const std::lock_guard lock(mutex_);
    stats_.live_bytes -= static_cast<int64_t>(capacity);
    try {
      free_.emplace(capacity, block);
      stats_.cached_bytes += static_cast<int64_t>(capacity);
    } catch (...) {
      std::free(block);
    }
  }

  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

  void release() {
    const std::lock_guard lock(mutex_);
    release_locked();
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void* allocate_locked(size_t capacity) {
    ++stats_.system_allocations;
    const auto bytes = static_cast<int64_t>(capacity);
    if (bytes >= kLarge && bytes > available_memory()) {
      release_locked();
      check_memory(static_cast<double>(capacity), "tensor: a block");
    }
    void* block = system_block(capacity);
    if (block == nullptr) {
      release_locked();
      block = system_block(capacity);
    }
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }

  void release_locked() {
    for (const auto& [capacity, block] : free_) std::free(block);
    free_.clear();
    stats_.cached_bytes = 0;
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  MemoryStats stats_;
};

// Never destroyed: tensors in static variables outlive any other static.
Cache& cache() {
  static Cache* instance = [] {
    auto* created = new Cache;
    // A fork holds the lock: the child finds the cache whole and the lock free, whatever other threads did.
    pthread_atfork([] { cache().lock(); }, [] { cache().unlock(); }, [] { cache().unlock(); });
    return created;
  }();
  return *instance;
}

}  // namespace

Storage::Storage(size_t bytes) : data_(nullptr), bytes_(bytes), capacity_(0) {
  MH_CHECK(bytes < (size_t{1} << 48), ValueError, "tensor: ", bytes, " bytes are beyond the address space");
  capacity_ = rounded_capacity(bytes);
  data_ = static_cast<std::byte*>(cache().take(capacity_));
}

Storage::Storage(void* data, size_t bytes, std::shared_ptr<void> owner)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), capacity_(0), owner_(std::move(owner)) {}

Storage::~Storage() {
  if (capacity_ != 0) cache().give(data_, capacity_);
}

MemoryStats memory_stats() { return cache().stats(); }
void reset_peak_memory() { cache().reset_peak(); }
void release_cached_memory() { cache().release(); }

}  // namespace multihead
