// metrics.jsonl and metrics.csv, with the names of the Hugging Face Trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/train/loop.h"

namespace multihead::train {

/// Appends one line per report to folder/metrics.jsonl and folder/metrics.csv. A resumed run first drops
/// reports after the checkpoint. A write failure is a warning to `warnings` (null: ignored) and never ends
/// the run.
class MetricsWriter : public Observer {
 public:
  explicit MetricsWriter(std::string folder, Observer* warnings = nullptr);

  void on_start(int64_t step, int64_t steps) override;
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvalReport& report) override;

 private:
  void open(int64_t step);
  void append(const Json& line);
  void write(const Json& line);
  void give_up(const std::string& why);

  std::string folder_;
  Observer* warnings_;
  std::vector<std::string> columns_;         // of the table; empty: not known yet
  int64_t evaluated_step_ = -1;              // of the last evaluation in the files
  std::unique_ptr<FileWriter> jsonl_, csv_;  // null: not writing
};

}  // namespace multihead::train
