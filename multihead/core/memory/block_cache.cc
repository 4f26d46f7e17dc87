#include "multihead/core/memory/block_cache-inl.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "multihead/core/memory/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif

namespace multihead {
namespace {

// Guard bytes after a block, for the sanitizer to find overruns.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGuard = 64;
#else
constexpr size_t kGuard = 0;
#endif

constexpr size_t kStep = 512;         // sizes are multiples of it
constexpr size_t kSmall = 256 << 10;  // below, blocks lie in segments of their own
constexpr size_t kPage = 4 << 10, kLargePage = 2 << 20;
// A segment is an eighth of what is held, within bounds: few of them, and little in the last that nothing
// needs.
constexpr size_t kLeastSegment = 2 * kLargePage, kMostSegment = 64 << 20;
// From here on, asking what is left (some 50 us) is nothing beside the time to fill the block.
constexpr size_t kLarge = 64 << 20;

size_t rounded(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Begins with a large page, and consists of them if the system has any: streams of 4 bits from one core gain
// a tenth.
std::byte* map_segment(size_t bytes) {
  void* raw = mmap(nullptr, bytes + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(raw);
  const size_t ahead = (kLargePage - reinterpret_cast<uintptr_t>(raw) % kLargePage) % kLargePage;
  if (ahead > 0) munmap(first, ahead);
  if (ahead < kLargePage) munmap(first + ahead + bytes, kLargePage - ahead);
  if (bytes > kLargePage)
    madvise(first + ahead, bytes, MADV_HUGEPAGE);  // where it is refused, pages are small
  return first + ahead;
}

// The pages that lie wholly in a block.
void drop_pages(const MemoryBlock& block) {
  const uintptr_t begin = rounded(reinterpret_cast<uintptr_t>(block.data), kPage);
  const uintptr_t end = reinterpret_cast<uintptr_t>(block.data + block.bytes) / kPage * kPage;
  if (begin < end)
    madvise(block.data + (begin - reinterpret_cast<uintptr_t>(block.data)), end - begin, MADV_DONTNEED);
}

}  // namespace

bool BySize::operator()(const MemoryBlock* x, const MemoryBlock* y) const {
  return x->bytes != y->bytes ? x->bytes < y->bytes : std::less<>()(x->data, y->data);
}
bool BySize::operator()(const MemoryBlock* x, size_t bytes) const { return x->bytes < bytes; }

MemoryBlock* BlockCache::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  MemoryBlock* block = take_locked(rounded(std::max<size_t>(bytes + kGuard, 1), kStep));
  ASAN_UNPOISON_MEMORY_REGION(block->data, bytes);
  stats_.cached_bytes -= static_cast<int64_t>(block->bytes);
  stats_.live_bytes += static_cast<int64_t>(block->bytes);
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  return block;
}

MemoryBlock* BlockCache::take_locked(size_t bytes) {
  FreeBlocks& pool = pools_[bytes < kSmall ? 0 : 1];
  auto found = pool.lower_bound(bytes);
  if (found == pool.end()) found = add_segment(pool, bytes);
  if (spares_ == nullptr) add_spare();
  MemoryBlock* block = *found;
  block->place = pool.extract(found);
  if (block->bytes > bytes) cut(block, bytes);
  return block;
}

void BlockCache::add_spare() {
  auto spare = std::make_unique<MemoryBlock>();
  FreeBlocks made = {spare.get()};  // only a set makes its nodes
  spare->place = made.extract(made.begin());
  spares_ = spare.release();
}

void BlockCache::cut(MemoryBlock* block, size_t bytes) {
  MemoryBlock* rest = std::exchange(spares_, spares_->after);
  FreeBlocks::node_type place = std::move(rest->place);
  *rest = {block->data + bytes, block->bytes - bytes, block->pool, block, block->after};
  block->pool->insert(std::move(place));
  block->bytes = bytes;
  block->after = rest;
  if (rest->after != nullptr) rest->after->before = rest;
}

void BlockCache::join_next(MemoryBlock* block) {
  MemoryBlock* next = block->after;
  block->bytes += next->bytes;
  block->after = next->after;
  if (block->after != nullptr) block->after->before = block;
  next->after = std::exchange(spares_, next);
}

void BlockCache::give(MemoryBlock* block) noexcept {
  const std::lock_guard lock(mutex_);
  ASAN_POISON_MEMORY_REGION(block->data, block->bytes);
  stats_.live_bytes -= static_cast<int64_t>(block->bytes);
  stats_.cached_bytes += static_cast<int64_t>(block->bytes);
  FreeBlocks& pool = *block->pool;
  if (block->after != nullptr && block->after->is_free()) {
    block->after->place = pool.extract(block->after);
    join_next(block);
  }
  if (block->before != nullptr && block->before->is_free()) {
    block = block->before;
    block->place = pool.extract(block);
    join_next(block);
  }
  pool.insert(std::move(block->place));
}

FreeBlocks::iterator BlockCache::add_segment(FreeBlocks& pool, size_t bytes) {
  ++stats_.system_allocations;
  const auto held = [&] { return static_cast<size_t>(stats_.live_bytes + stats_.cached_bytes); };
  const size_t least = rounded(bytes, kLargePage);
  const size_t usual = &pool == pools_.data() ? 0 : std::clamp(held() / 8, kLeastSegment, kMostSegment);
  const size_t size = std::max(least, rounded(usual, kLargePage));
  // The memory held never exceeds the peak demand by more than an eighth (at least 16 MiB).
  const auto peak =
      std::max(static_cast<size_t>(stats_.peak_bytes), static_cast<size_t>(stats_.live_bytes) + bytes);
  if (held() + size > peak + std::max<size_t>(peak / 8, 16 << 20)) release_locked();
  if (bytes >= kLarge && static_cast<int64_t>(bytes) > available_memory()) {
    release_locked();
    check_memory(static_cast<double>(bytes), "tensor: a block");
  }
  auto block = std::make_unique<MemoryBlock>(MemoryBlock{map_segment(size), size, &pool});
  if (block->data == nullptr) {
    release_locked();
    *block = {map_segment(least), least, &pool};
  }
  if (block->data == nullptr) throw std::bad_alloc();
  ASAN_POISON_MEMORY_REGION(block->data, block->bytes);
  const auto at = pool.insert(block.get()).first;
  stats_.cached_bytes += static_cast<int64_t>(block.release()->bytes);
  return at;
}

MemoryStats BlockCache::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void BlockCache::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.live_bytes;
}

void BlockCache::release() {
  const std::lock_guard lock(mutex_);
  release_locked();
}

void BlockCache::release_locked() {
  while (spares_ != nullptr) delete std::exchange(spares_, spares_->after);
  for (FreeBlocks& pool : pools_) {
    for (auto it = pool.begin(); it != pool.end();) {
      MemoryBlock* block = *it;
      if (block->before != nullptr || block->after != nullptr) {
        drop_pages(*block);
        ++it;
        continue;
      }
      it = pool.erase(it);
      stats_.cached_bytes -= static_cast<int64_t>(block->bytes);
      ASAN_UNPOISON_MEMORY_REGION(block->data, block->bytes);
      munmap(block->data, block->bytes);
      delete block;
    }
  }
}

}  // namespace multihead
