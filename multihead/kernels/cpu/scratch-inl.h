// Per-thread scratch memory that kernels reuse from call to call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace multihead::kernels {

/// Uninitialised bytes aligned to a cache line; grows, never shrinks, freed with its owner.
class Scratch {
 public:
  /// At least `count` elements; what was in them before is lost. Throws std::bad_alloc.
  template <class T>
  T* get(size_t count) {
    return static_cast<T*>(bytes(count * sizeof(T)));
  }

 private:
  void* bytes(size_t size) {
    if (size > size_) {
      memory_.reset();
      size_ = 0;
      const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset(std::aligned_alloc(kAlignment, rounded));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return memory_.get();
  }

  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

}  // namespace multihead::kernels
