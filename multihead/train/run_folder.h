// The folder of a training run: its file names, and protection of everything else.
//
//   train_config.json            the run's options and id; identifies the folder
//   metrics.jsonl  metrics.csv   metrics
//   checkpoint-<step>/           each with a manifest that holds the run id
//   config.json  model.safetensors  tokenizer.json  tokenizer_config.json  source_tokenizer.json
//                                the model, once the run has ended: replaced as one (io/file_set.h)
//   manifest.json                lists the model's files
//   summary.json                 results
//   .lock                        held while a process uses the folder
//   .multihead-<16 digits>/      unfinished writes
//
// A folder where one of these names does not belong to the run is refused before the first byte is written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"

namespace multihead::train {

constexpr const char* kSummaryFile = "summary.json";
constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kMetricsTable = "metrics.csv";

/// The locked folder of a run.
class RunFolder {
 public:
  /// Creates the folder if needed. `resume`: continue its run, or start one. `overwrite`: replace it. Throws
  /// ValueError if it holds a run and neither is set, or foreign files; IoError (in use, unreadable).
  RunFolder(std::string path, bool resume, bool overwrite);
  /// Removes a folder that it created if nothing was written into it.
  ~RunFolder();
  RunFolder(RunFolder&&) = delete;

  const std::string& path() const { return path_; }
  /// The run id, for the manifests of its checkpoints; empty for runs of earlier versions.
  const std::string& run() const { return run_; }
  /// The checkpoint to resume from, if requested and present.
  const std::optional<io::CheckpointInfo>& checkpoint() const { return checkpoint_; }

  /// Starts a new run: deletes the existing one, model first, then writes `record` as train_config.json.
  void begin(Json record);
  /// Undoes begin() unless there is a checkpoint by now.
  void withdraw();
  /// Whether train_config.json has these values of these settings.
  bool is_recorded(const Json& settings) const;
  /// Puts other settings into train_config.json.
  void record(const Json& settings);
  /// Saves the run's model as one, config.json last.
  void publish(const io::CheckpointContents& model);
  void write_summary(const Json& summary);

 private:
  void remove(const char* name) const;

  std::string path_, run_;
  bool is_new_ = false;  // the folder was not there
  std::unique_ptr<FolderLock> lock_;
  std::optional<io::CheckpointInfo> checkpoint_;
};

}  // namespace multihead::train
