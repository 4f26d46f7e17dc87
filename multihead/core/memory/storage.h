// Reference-counted, 64-byte aligned memory behind tensors, recycled through a process-wide cache: after
// the first training step nothing is allocated from the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace multihead {

struct MemoryBlock;

class Storage {
 public:
  /// Uninitialised bytes. Throws ValueError if `bytes` is beyond the address space, std::bad_alloc when out
  /// of memory: MemoryError, before allocation, if the block is larger than the available memory.
  explicit Storage(size_t bytes);
  /// Borrowed memory, kept alive by `owner`.
  Storage(void* data, size_t bytes, std::shared_ptr<void> owner);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool is_borrowed() const { return block_ == nullptr && bytes_ > 0; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
  MemoryBlock* block_ = nullptr;  // null: borrowed
  std::shared_ptr<void> owner_;
};

struct MemoryStats {
  int64_t live_bytes = 0;          ///< in use by tensors
  int64_t peak_bytes = 0;          ///< maximum of live_bytes
  int64_t cached_bytes = 0;        ///< free, kept for the next tensor
  int64_t system_allocations = 0;  ///< requests the cache could not serve
};

MemoryStats memory_stats();
/// Resets peak_bytes to live_bytes.
void reset_peak_memory();
/// Returns cached memory to the system.
void release_cached_memory();

}  // namespace multihead
