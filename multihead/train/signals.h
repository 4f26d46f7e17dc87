// SIGINT and SIGTERM ask a run to end; a second one ends the process at once.
#pragma once

namespace multihead::train {

/// Installs handlers while alive; one at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal that came (SIGINT, SIGTERM), or 0.
  static int received();
  /// What a shell reports for it: 130, 143.
  static int exit_code() { return 128 + received(); }
};

}  // namespace multihead::train
