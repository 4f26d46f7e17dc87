// Hooks for tests of the pool: thread creation, behind a pointer so that they can make the n-th one fail,
// and how long a worker waits.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace multihead {

/// Throws what std::thread throws: std::system_error at a limit of the system, std::bad_alloc.
using StartThread = std::thread (*)(std::function<void()> body);
StartThread& start_thread();

/// How long a worker without work stays awake before it sleeps, as waking it takes 10 us and more (19 to 25
/// us in a virtual machine). Meanwhile it yields, but the scheduler deals out time fairly: another program on
/// its processor still loses a third to such waiting. So it waits for long only where its last sleep was
/// shorter than that, as the program pauses and comes back, and where no other program has wanted the
/// processor.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kShort{300}, kLong{3000};
  /// A yield that takes longer has given the processor to another program, and not to an interrupt.
  static constexpr std::chrono::microseconds kCrowded{500};
  static constexpr std::chrono::milliseconds kCrowdedFor{100};

  Clock::duration awake() const { return awake_; }

  /// Work has come, after `slept` asleep; whether the processor was `crowded` meanwhile.
  void work_came(Clock::time_point now, Clock::duration slept, bool crowded) {
    if (crowded) crowded_until_ = now + kCrowdedFor;
    if (now < crowded_until_) {
      awake_ = kShort;
    } else if (slept > Clock::duration::zero()) {
      awake_ = slept < kLong ? kLong : kShort;
    }
  }

 private:
  Clock::duration awake_ = kShort;
  Clock::time_point crowded_until_;
};

}  // namespace multihead
