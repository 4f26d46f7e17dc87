// Human-readable progress: a line rewritten in place on a terminal, plain lines elsewhere.
#pragma once

#include <iosfwd>
#include <string>

#include "multihead/train/loop.h"

namespace multihead::train {

struct ProgressOptions {
  bool terminal = false;         ///< rewrite the line in place
  bool quiet = false;            ///< warnings only
  double seconds_per_line = 10;  ///< not on a terminal: at most one progress line per interval
};

class ProgressPrinter : public Observer {
 public:
  /// `out` must outlive the printer.
  explicit ProgressPrinter(std::ostream& out, const ProgressOptions& options = {});

  void on_job(const JobReport& report) override;
  void on_start(int64_t step, int64_t steps) override;
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvalReport& report) override;
  void on_warning(const std::string& message) override;
  void on_note(const std::string& message) override;

 private:
  void line(const std::string& text);

  std::ostream& out_;
  ProgressOptions options_;
  int64_t steps_ = 0;
  double last_line_ = -1e9;
  bool pending_ = false;  // the cursor is at the end of a line to be redrawn
};

/// "8s", "2m05s", "3h07m".
std::string duration_text(double seconds);
/// "950", "23.4k", "1.2M".
std::string count_text(double count);

}  // namespace multihead::train
