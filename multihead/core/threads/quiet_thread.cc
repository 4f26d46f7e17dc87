#include "multihead/core/threads/quiet_thread-inl.h"

namespace multihead {

SignalsBlocked::SignalsBlocked() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF})
    sigdelset(&signals, signal);
  pthread_sigmask(SIG_SETMASK, &signals, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace multihead
