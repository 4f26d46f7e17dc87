// Gives the interpreter's lock away and takes it back.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace multihead::python {

/// f(), which asks for the interpreter's lock or runs Python code, and so may find the interpreter shutting
/// down. Python before 3.14 then ends the thread by unwinding its stack, and an unwinding that meets a
/// function that may not throw, as destructors are, or a catch (...), aborts the process. The thread, a
/// daemon that was computing, sleeps here instead, as under later versions, until the process is gone.
template <class F>
auto or_sleep(F&& f) {
#ifdef __GLIBCXX__
  try {
    return f();
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
#else  // libc++ has no name for it, and its catch (...) lets it pass
  return f();
#endif
}

/// Whether this thread shuts the interpreter down, which Python's atexit tells. It alone holds the lock then, and may
/// compute meanwhile, for a __del__.
inline thread_local bool is_finalizing = false;

/// Without the interpreter's lock while it lives.
class Unlocked {
 public:
  Unlocked() : state_(Py_IsInitialized() ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) or_sleep([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// With the interpreter's lock while it lives, whatever the thread had before. Any other thread sleeps for ever once the
/// interpreter is gone: it has forgotten its threads by then, so that asking for its lock would be reading what was freed.
class Locked {
 public:
  Locked() : has_it_(is_finalizing && !Py_IsInitialized()) {
    if (has_it_) return;
    while (!Py_IsInitialized()) pause();
    or_sleep([this] { state_ = PyGILState_Ensure(); });
  }
  ~Locked() {
    if (!has_it_) PyGILState_Release(state_);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  bool has_it_;
  PyGILState_STATE state_ = {};
};

/// Releases the interpreter lock around f().
template <class F>
auto unlocked(F&& f) {
  const Unlocked without;
  return f();
}

}  // namespace multihead::python
