// Cancels long work between the tasks of a parallel_for.
#pragma once

#include <functional>

namespace multihead {

/// While it is alive, parallel_for on this thread calls check() before each index this thread runs. An
/// exception from check() ends the call like one from a body and leaves its outputs partly written: use it
/// only for work whose results are then discarded.
class InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> check);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  std::function<void()> check_;
  const std::function<void()>* before_;
};

/// The same check between the parts of work that one thread does without a parallel_for.
void check_interrupt();

}  // namespace multihead
