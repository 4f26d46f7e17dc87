// SIGINT, SIGTERM and SIGHUP (a terminal that closes) request a graceful stop; a second one kills the process.
#pragma once

namespace multihead::train {

/// Installs handlers while alive; one at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal received (SIGINT, SIGTERM, SIGHUP), or 0.
  static int received();
  /// The shell's exit code for it: 130, 143, 129; 143 too where another rank was told to stop.
  static int exit_code();
};

}  // namespace multihead::train
