#include "multihead/train/signals.h"

#include <signal.h>
#include <unistd.h>

namespace multihead::train {
namespace {

volatile sig_atomic_t stop_signal = 0;
struct sigaction previous_interrupt, previous_terminate, previous_hangup;

void on_signal(int signal) {
  if (stop_signal != 0) _exit(128 + signal);
  stop_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
  sigaction(SIGHUP, nullptr, &previous_hangup);
  if (previous_hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup asks to go on
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
  sigaction(SIGHUP, &previous_hangup, nullptr);
}

int StopSignals::received() { return stop_signal; }
int StopSignals::exit_code() { return 128 + (stop_signal != 0 ? stop_signal : SIGTERM); }

}  // namespace multihead::train
