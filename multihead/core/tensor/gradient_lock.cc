#include "multihead/core/tensor/gradient_lock-inl.h"

#include <pthread.h>

#include <array>
#include <functional>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/threads/parallel.h"

namespace multihead {
namespace {

using Mutexes = std::array<std::mutex, 64>;

// Never destroyed. A fork holds them, like the locks of the pool and the storage: the child finds them free
// and every gradient whole. Who adds gradients may take those two while it has one of these, so a fork takes
// these first, which means that they are registered last.
Mutexes& mutexes() {
  static Mutexes* instance = [] {
    num_threads();
    auto* created = new Mutexes;
    const auto lock = [] {
      for (std::mutex& mutex : mutexes()) mutex.lock();
    };
    const auto unlock = [] {
      for (std::mutex& mutex : mutexes()) mutex.unlock();
    };
    pthread_atfork(lock, unlock, unlock);
    return created;
  }();
  return *instance;
}

}  // namespace

std::mutex& detail::gradient_mutex(const GradientSlot& slot) {
  Mutexes& all = mutexes();
  return all[std::hash<const GradientSlot*>()(&slot) / sizeof(GradientSlot) % all.size()];
}

}  // namespace multihead
