// A limit on threads, for tests of what does with fewer.
#pragma once

#include <cerrno>
#include <functional>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "multihead/core/threads/parallel-inl.h"

namespace multihead {

/// Lets `allowed` threads start while it lives; the next one meets a limit.
class ThreadLimit {
 public:
  enum class Error { system, memory };

  ThreadLimit(int allowed, Error error) {
    left_ = allowed;
    error_ = error;
    before_ = start_thread();
    start_thread() = [](std::function<void()> body) {
      if (left_-- > 0) return std::thread(std::move(body));
      if (error_ == Error::memory) throw std::bad_alloc();
      throw std::system_error(EAGAIN, std::generic_category());
    };
  }
  ~ThreadLimit() { start_thread() = before_; }

 private:
  static inline StartThread before_;
  static inline int left_;
  static inline Error error_;
};

}  // namespace multihead
