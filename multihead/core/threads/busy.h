// Detects concurrent modification of an object.
#pragma once

#include <atomic>
#include <string_view>

#include "multihead/core/error.h"

namespace multihead {

/// A member of such an object. Copies are independent, so their flags start free.
class BusyFlag {
 public:
  BusyFlag() = default;
  BusyFlag(const BusyFlag&) noexcept {}
  BusyFlag& operator=(const BusyFlag&) noexcept { return *this; }

 private:
  friend class Busy;
  std::atomic<bool> taken_{false};
};

/// Takes the flag for its lifetime. Throws ValueError, before anything is changed, if another call holds it.
class Busy {
 public:
  Busy(BusyFlag& flag, std::string_view who) : flag_(flag) {
    MH_CHECK(!flag_.taken_.exchange(true, std::memory_order_acquire), ValueError, who,
             ": the state is in use by another call; use a separate state per thread");
  }
  ~Busy() { flag_.taken_.store(false, std::memory_order_release); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  BusyFlag& flag_;
};

}  // namespace multihead
