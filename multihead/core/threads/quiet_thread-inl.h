// Threads that take no signals. Internal to the library.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace multihead {

/// While it is alive, threads that this one starts have all signals blocked but those of faults and profilers.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// A thread that leaves the process's signals to the host's own: one that blocks SIGTERM and waits for it with sigwait()
/// would otherwise be ended by it here. Throws what std::thread throws.
template <class Body>
std::thread quiet_thread(Body&& body) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Body>(body));
}

}  // namespace multihead
