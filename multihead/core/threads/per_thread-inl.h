// Objects that every thread has one of. Internal to the library.
#pragma once

#include <memory>

namespace multihead {

namespace detail {
/// Calls free(*slot) when this thread ends, and makes *slot null; never if the thread's objects are freed already. Throws
/// std::bad_alloc.
void free_at_thread_end(void** slot, void (*free)(void*));
}  // namespace detail

/// A T of this thread, made on first use and freed when the thread ends; to be declared thread_local. What runs later, as
/// the destructors of a host's static objects do after the main thread's, gets one that is never freed: a T that is
/// thread_local itself would be used there after its end.
template <class T>
class PerThread {
 public:
  T& operator*() {
    if (own_ == nullptr) make();
    return *static_cast<T*>(own_);
  }
  T* operator->() { return &**this; }

 private:
  void make() {
    auto made = std::make_unique<T>();
    detail::free_at_thread_end(&own_, [](void* own) { delete static_cast<T*>(own); });
    own_ = made.release();
  }

  void* own_ = nullptr;
};

}  // namespace multihead
