// The training loop: steps, schedule, clipping, evaluation, checkpoints, resuming, stopping.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/config.h"
#include "multihead/optim/optimizer.h"
#include "multihead/optim/schedule.h"
#include "multihead/train/parallel/data_parallel.h"
#include "multihead/train/parallel/sharing.h"

namespace multihead::train {

class ContextParallel;

/// Results of an evaluation beside its loss, by name: "accuracy".
using Figures = std::vector<std::pair<std::string, double>>;

/// The part of a run that depends on the kind of model.
class Task {
 public:
  struct Loss {
    Tensor value;        ///< one element, the mean over the targets
    int64_t tokens = 0;  ///< what the reports count
    double share = 1;    ///< of the micro-batch: in a ContextScope it is a part of one
  };

  virtual ~Task() = default;
  /// The loss of micro-batch `index` = 0, 1, …, recorded on the current tape: a function of the index and
  /// the weights only, dropout included, so that a resumed run equals an uninterrupted one.
  virtual Loss loss(int64_t index) = 0;
  /// The number of targets of micro-batch `index`, or the sum of their weights: what its mean counts for among those of
  /// a step. A function of the index only.
  virtual double targets(int64_t index) const = 0;
  /// For ContextParallel, which other kinds of runs refuse: the length of the sequences, and a task over the
  /// same weights with gradients of its own, in the order of trained_parameters().
  virtual int64_t length() const;
  virtual std::unique_ptr<Task> twin(std::vector<nn::NamedTensor>& parameters) const;
  /// The mean validation loss in nats; none without validation data.
  virtual std::optional<double> evaluate(const Sharing& sharing) = 0;
  /// Those of the latest evaluate().
  virtual Figures metrics() const { return {}; }
  /// Adds the files of the model.
  virtual void save(io::CheckpointContents& contents) = 0;
  /// Reads the weights back from a checkpoint folder; throws FormatError if they belong to another model.
  virtual void load(const std::string& path) = 0;
  /// The settings and data that a resumed run must share with the interrupted one: sizes, seed …
  virtual Json identity() const = 0;
  /// The settings of identity() at their defaults: runs from before a setting existed trained with its default.
  virtual Json defaults() const { return Json::object(); }
};

struct LoopOptions {
  std::string folder = {};  ///< exists, and the caller holds its FolderLock
  int64_t steps = 1000;
  /// Micro-batches per shard, added one after the other. A step's loss is the mean over the targets of all of
  /// its micro-batches, as of one batch that holds them.
  int64_t accumulate = 1;
  /// Shares the shards of a step with other ranks; see TrainLoop. Null: a step is one shard.
  DataParallel* parallel = nullptr;
  /// A step is one shard whose positions are cut; the parts are what `parallel` adds. Null: they are whole.
  ContextParallel* context = nullptr;
  double clip = 1;                ///< gradient norm to clip to; 0: off
  Dtype precision = Dtype::f32;   ///< of products, see Autocast
  optim::Schedule schedule = {};  ///< check() it first
  int64_t log_every = 10;         ///< steps between training reports
  int64_t eval_every = 250;  ///< steps between evaluations; 0: only before the first step and after the last
  int64_t save_every = 0;    ///< steps between checkpoints; 0: as eval_every
  int64_t keep = 2;  ///< newest checkpoints kept, besides the best one, of any evaluated step after the start
  std::string best =
      "loss";            ///< the best is that of the least loss, or with the most of this one of metrics()
  int64_t patience = 0;  ///< early stopping after this many evaluations without improvement; 0: off
  bool restore_best = false;  ///< end with the weights of the best checkpoint instead of the last
  bool resume = false;        ///< continue from the newest checkpoint, or start if there is none
  bool extends = false;       ///< resume: with another number of steps, and of those of warm-up
  bool overwrite = false;  ///< without resume: delete the checkpoints of an earlier run instead of refusing
  std::string run = {};    ///< the run the checkpoints belong to (RunFolder::run); empty: none
};

struct StepReport {
  int64_t step = 0, steps = 0;  ///< taken, total
  double loss = 0;              ///< mean since the last report
  double learning_rate = 0;
  double grad_norm = 0;          ///< before clipping
  double tokens_per_second = 0;  ///< of training steps since the last report
  int64_t tokens = 0;            ///< since step 0
  double seconds = 0;            ///< since step 0, without pauses between interrupted runs
  double seconds_left = 0;
};

/// A job of several ranks, before its first step.
struct JobReport {
  int ranks = 1, threads = 1;  ///< threads of this rank
  int64_t shards = 1;
  double bytes = 0;  ///< of a rank's weights, gradients and optimiser state; activations come on top
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0;
  bool is_best = false;
  Figures metrics = {};  ///< Task::metrics()
  double perplexity() const;
};

/// Callbacks of a run. Exceptions end the run.
class Observer {
 public:
  virtual ~Observer() = default;
  /// First of all, if there are several ranks.
  virtual void on_job(const JobReport&) {}
  /// Before the first step of this process; `step` > 0 means resumed.
  virtual void on_start(int64_t step, int64_t steps) { (void)step, (void)steps; }
  virtual void on_step(const StepReport&) {}
  virtual void on_evaluation(const EvalReport&) {}
  virtual void on_checkpoint(const std::string& path) { (void)path; }
  virtual void on_warning(const std::string& message) { (void)message; }
  virtual void on_note(const std::string& message) { (void)message; }
};

enum class Ending { finished, stopped_early, interrupted };

/// What the best evaluation has most of: -loss, or another figure (LoopOptions::best); NaN: it lacks that.
double merit(const std::string& best, double loss, const Figures& figures);
/// Throws ValueError unless `best` is "loss" or one of the figures of an evaluation; null: nothing is evaluated.
void check_best(const std::string& best, const Figures* figures);

/// Totals of a run so far; saved with it.
struct Progress {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;                                            ///< total
  double train_seconds = 0;                                      ///< in training steps
  double first_loss = std::numeric_limits<double>::quiet_NaN();  ///< validation loss before the first step
  double last_loss = std::numeric_limits<double>::quiet_NaN();   ///< the latest
  double best_loss = std::numeric_limits<double>::infinity();    ///< of the best step
  Figures first_figures = {}, last_figures = {}, best_figures = {};  ///< the other results, likewise
  int64_t best_step = -1;
  int64_t evaluations_since_best = 0;  ///< those since one improved on all, the start included
  /// Of the training steps since the last report, which a resumed run goes on with: sums of losses and seconds.
  double unreported_loss = 0, unreported_seconds = 0;
  int64_t unreported_steps = 0, unreported_tokens = 0;
};

Json to_json(const Figures& figures);
Json to_json(const Progress& progress);
/// Throws FormatError naming the file and the field.
Progress progress_from_json(io::ConfigReader& in);

/// The checkpoint to continue from, if any. Without `resume` the run's checkpoints are deleted (overwrite) or
/// refused with ValueError, as is a checkpoint-<step> of another run. Also removes leftovers of killed
/// processes.
std::optional<io::CheckpointInfo> open_run(const std::string& folder, bool resume, bool overwrite,
                                           const std::string& run = "");

/// Runs a task with an optimiser over its parameters.
///
/// With LoopOptions::parallel a step is its tree's shards, of accumulate micro-batches each, and every rank
/// runs a loop with the same options and an optimiser over its own_parameters(). Rank 0 leads: it alone
/// reports, and reads and writes the folder, and the others do what it does next. A request to stop counts
/// on any rank. Weights and losses are the same bits on any number of ranks, and a run goes on with another
/// number. In the end all ranks have the weights that are kept.
///
/// Files     folder/checkpoint-<step>/: the task's own, optimizer.safetensors, trainer_state.json
/// Throws    NumericError (NaN or Inf, with step and tensor, before the weights are touched), ValueError and
///           FormatError (a checkpoint of another run), IoError. Failing to write an intermediate
///           checkpoint is only a warning; the last one must succeed.
class TrainLoop {
 public:
  /// All outlive the loop.
  TrainLoop(Task& task, optim::Optimizer& optimizer, LoopOptions options,
            std::vector<Observer*> observers = {});

  /// `should_stop` is polled between steps and inside evaluations; once true, the run saves and ends as
  /// interrupted. A resumed run repeats an evaluation that was cut short.
  Ending run(const std::function<bool()>& should_stop = {});
  const Progress& progress() const { return progress_; }
  /// The validation loss of the weights that the run ends with, measured as Progress::first_loss.
  double kept_loss() const { return kept_loss_; }
  const Figures& kept_figures() const {
    return keeps_best_ ? progress_.best_figures : progress_.last_figures;
  }

 private:
  enum class Order : int64_t { step, evaluate, save, end };
  struct ShardLoss {
    double loss = 0;
    int64_t tokens = 0;
    int64_t stops = 0;  // the rank was asked to stop
  };

  void start();
  optim::StateMap restore(const std::string& path);
  void share_start(const optim::StateMap& state);
  Ending lead();
  Ending follow();
  void give(Order order, int64_t word = 0);
  bool restore_best();
  void step();
  std::vector<double> targets() const;
  ShardLoss backward(Task& task, int64_t shard, std::span<const double> targets, double total) const;
  void count(const ShardLoss& loss);
  double backward_own();
  void exchange_losses(std::vector<ShardLoss>& shards);
  double grad_norm();
  bool compare();
  void report(double grad_norm);
  bool evaluate();
  bool is_stopping();
  distributed::Group* group() const {
    return options_.parallel != nullptr ? &options_.parallel->group() : nullptr;
  }
  bool leads() const { return options_.parallel == nullptr || options_.parallel->leads(); }
  optim::StateMap optimizer_state() const;
  void check_folder() const;
  void save(bool must_succeed);
  bool is_kept_step(bool new_best) const;
  std::vector<int64_t> kept_steps() const;
  void drop_passing();
  bool is_due(int64_t every) const;
  template <class F>
  void tell(F&& call) const {
    for (Observer* observer : observers_) call(*observer);
  }

  std::function<bool()> should_stop_;
  bool stopping_ = false;
  Task& task_;
  optim::Optimizer& optimizer_;
  LoopOptions options_;
  std::vector<Observer*> observers_;
  Progress progress_;
  double kept_loss_ = std::numeric_limits<double>::quiet_NaN();
  bool keeps_best_ = false;  // the run ends with the weights of the best step, which are not the last
  int64_t saved_step_ = -1, tried_step_ = -1;
  int64_t evaluated_step_ = -1;
  int64_t passing_step_ = -1;  // of the checkpoint resumed from, if a stop has left it
  double started_ = 0;         // clock, less the seconds of earlier processes
};

}  // namespace multihead::train
