#include "multihead/core/threads/per_thread-inl.h"

#include <utility>
#include <vector>

namespace multihead::detail {
namespace {

struct Slot {
  void** object;
  void (*free)(void*);
};

constinit thread_local std::vector<Slot>* slots = nullptr;
constinit thread_local bool has_ended = false;

struct ThreadEnd {
  ~ThreadEnd() {
    has_ended = true;
    const std::unique_ptr<std::vector<Slot>> all(std::exchange(slots, nullptr));
    for (const Slot& slot : *all) slot.free(std::exchange(*slot.object, nullptr));
  }
};

}  // namespace

void free_at_thread_end(void** object, void (*free)(void*)) {
  if (has_ended) return;
  if (slots == nullptr) {
    slots = new std::vector<Slot>;
    static thread_local const ThreadEnd end;
    static_cast<void>(&end);
  }
  slots->push_back({object, free});
}

}  // namespace multihead::detail
