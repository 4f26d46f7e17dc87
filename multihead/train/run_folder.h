// The folder of a training run: which names are the run's, and that nothing else is touched.
//
//   train_config.json            what the run was asked for, and its number: the mark of the folder
//   metrics.jsonl  metrics.csv   what it reported
//   checkpoint-<step>/           each with a manifest that carries the number
//   config.json  model.safetensors  tokenizer.json  tokenizer_config.json  source_tokenizer.json
//                                the model, once the run has ended: these change as one (io/file_set.h)
//   manifest.json                lists the model's files
//   summary.json                 how it went
//   .lock                        while a process holds the folder
//   .multihead-<16 digits>/      what is not finished yet
//
// A folder in which anything has one of these names without belonging to the run is refused before the first
// byte is written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/core/json.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"

namespace multihead::train {

constexpr const char* kSummaryFile = "summary.json";
constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kMetricsTable = "metrics.csv";

/// Holds the folder of a run.
class RunFolder {
 public:
  /// Creates the folder if needed. `resume`: go on with the run in it, or begin one. `overwrite`: replace it.
  /// Throws ValueError if it holds a run and neither is asked for, or something that is not that run's;
  /// IoError (in use, unreadable).
  RunFolder(std::string path, bool resume, bool overwrite);

  const std::string& path() const { return path_; }
  /// The number of the run, for the manifests of its checkpoints; empty for runs of earlier versions.
  const std::string& run() const { return run_; }
  /// What to go on from, if that was asked for and there is one.
  const std::optional<io::CheckpointInfo>& checkpoint() const { return checkpoint_; }

  /// A new run: the one in the folder goes, the model first, then `record` is written as train_config.json.
  void begin(Json record);
  /// The model of the run, as one: config.json comes last.
  void publish(const io::CheckpointContents& model);
  void write_summary(const Json& summary);

 private:
  void remove(const char* name) const;

  std::string path_, run_;
  std::unique_ptr<FolderLock> lock_;
  std::optional<io::CheckpointInfo> checkpoint_;
};

}  // namespace multihead::train
