// What every whole run has around its task: where things lie, the loop with its metrics, the account of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "multihead/nn/module.h"
#include "multihead/train/loop.h"
#include "multihead/train/run_folder.h"
#include "multihead/train/settings.h"

namespace multihead::train {

using io::kRunFile;

/// What a run is asked for besides its settings.
struct RunRequest {
  std::string data = {};       ///< what it learns from
  std::string tokenizer = {};  ///< a tokenizer.json or its folder; empty: one is trained
  std::string folder = {};     ///< what is made: model, tokenizer, checkpoints, metrics, summary.json
  bool resume = false;
  bool overwrite = false;
  std::vector<Observer*> observers = {};
  std::function<bool()> should_stop = {};
};

/// What came of it.
struct RunSummary {
  Ending ending = Ending::finished;
  Progress progress;
  int64_t parameters = 0;
  int64_t peak_bytes = 0;        ///< held by tensors
  double tokens_per_second = 0;  ///< targets per second of training steps
};

/// The loop a request and its settings ask for; `restore_best` and the schedule's width are the task's.
LoopOptions loop_options(const RunRequest& request, const RunFolder& folder, const TrainingSettings& settings,
                         int64_t embed_dim);

/// Trains `task`, whose parameters these are, with the optimiser of the settings. Reports to the request's
/// observers and to metrics.jsonl and metrics.csv. Throws what TrainLoop throws.
RunSummary run_task(Task& task, const std::vector<nn::NamedTensor>& parameters, const RunRequest& request,
                    const TrainingSettings& settings, const LoopOptions& options);

/// The optimiser the settings ask for, over all parameters of a model.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingSettings& settings,
                                                 const std::vector<nn::NamedTensor>& parameters);

/// Throws MemoryError unless a model of so many weights, their gradients and what the optimiser of the
/// settings keeps of them fit into memory.
void check_training_memory(const TrainingSettings& settings, int64_t weights);

/// For kRunFile and summary.json; a kind of run adds its own to them.
Json to_json(const RunRequest& request, const std::vector<Field>& settings);
Json to_json(const RunSummary& summary);

}  // namespace multihead::train
