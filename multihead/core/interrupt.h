// Ends long work from outside, between the tasks of a parallel_for.
#pragma once

#include <functional>

namespace multihead {

/// While it lives, parallel_for of this thread asks check() before each index that this thread runs. What
/// check() throws ends the call as any exception of a body does: what the call was to fill is left half
/// filled, so only work whose results are thrown away then may be run like this.
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

}  // namespace multihead
