// A complete run around its task: paths, the loop with metrics, the summary.
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "multihead/distributed/group.h"
#include "multihead/io/json.h"
#include "multihead/nn/module.h"
#include "multihead/text/corpus/table.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/loop.h"
#include "multihead/train/run_folder.h"
#include "multihead/train/settings.h"

namespace multihead::train {

using io::kRunFile;

/// The request for a run, besides its settings.
struct RunRequest {
  std::string data = {};       ///< training data
  std::string tokenizer = {};  ///< a tokenizer.json or its folder; empty: one is trained
  std::string valid = {};      ///< validation data, of kinds that take a file of it; empty: none
  /// How both files are read, by kinds that take tables.
  text::TableFormat format = text::TableFormat::by_name;
  /// A model folder whose weights training starts from, and whose tokenizer it takes if `tokenizer` is empty.
  /// The settings describe its model, see start_from(). Empty: random weights.
  std::string init = {};
  std::string preset = {};  ///< what the settings began from; unused if `init` is given
  std::string folder = {};  ///< output: model, tokenizer, checkpoints, metrics, summary.json
  bool resume = false;
  bool extends = false;  ///< resume: with another number of steps
  bool overwrite = false;
  std::vector<std::string> given = {};  ///< settings that were named: those without a use may be refused
  std::vector<Observer*> observers = {};
  std::function<bool()> should_stop = {};
  /// The ranks that train together; all call with the same request. Rank 0 reports and owns the folder, which
  /// no other rank needs to see. Null: this process alone.
  distributed::Group* group = nullptr;

  int ranks() const { return group != nullptr ? group->size() : 1; }
  Sharing sharing() const { return {.should_stop = should_stop, .group = group}; }
  int rank() const { return group != nullptr ? group->rank() : 0; }
  bool leads() const { return rank() == 0; }
};

/// A request and the settings of its kind.
template <class S>
struct RunOf : RunRequest {
  S settings = {};
};

/// The result of a run.
struct RunSummary {
  Ending ending = Ending::finished;
  Progress progress;
  /// The validation loss of the kept model on what the evaluations of the run took, to compare with
  /// progress.first_loss; NaN without validation data.
  double kept_loss = std::numeric_limits<double>::quiet_NaN();
  Figures kept_figures = {};      ///< its other results, to compare with progress.first_figures
  bool worse_than_start = false;  ///< the kept model, by the figure that the best one is chosen by
  int64_t parameters = 0;
  int64_t peak_bytes = 0;        ///< held by tensors
  double tokens_per_second = 0;  ///< targets per second of training steps
};
/// The same, with the score of the kept model on all validation data.
template <class Score>
struct ScoredSummary : RunSummary {
  std::optional<Score> validation;
};

/// For RunSummary::worse_than_start. `best` as LoopOptions::best.
bool is_worse_than_start(const RunSummary& summary, const std::string& best);

/// Trains `task`, whose parameters these are, with the optimiser of the settings. Reports to the request's
/// observers and to metrics.jsonl and metrics.csv. Throws what TrainLoop throws.
RunSummary run_task(Task& task, const std::vector<nn::NamedTensor>& parameters, const RunRequest& request,
                    const TrainingSettings& settings, LoopOptions options);

/// The parameters of a model that require gradients: the others are frozen.
template <class Model>
std::vector<nn::NamedTensor> trained_parameters(Model& model) {
  std::vector<nn::NamedTensor> all = nn::named_parameters(model);
  std::erase_if(all, [](const nn::NamedTensor& p) { return !p.tensor.requires_grad(); });
  return all;
}

/// The dropout of a micro-batch: random streams of its own, apart from those of the initial weights.
Rng dropout_rng(const TrainingSettings& settings, int64_t batch);

/// The configured optimiser over all parameters of a model.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingSettings& settings,
                                                 const std::vector<nn::NamedTensor>& parameters);

/// Throws ValueError naming the settings of the first list that differ from the second, the same of the model in
/// `init`, if they can be why its weights do not fit.
void refuse_other_sizes(const std::vector<Field>& asked, const std::vector<Field>& own,
                        const std::string& init);

/// Weights that training starts from; the models must be of one shape. Throws FormatError naming the
/// differences.
template <class Model>
void copy_weights(Model& to, Model from, const std::string& source) {
  std::map<std::string, Tensor> tensors;
  for (const nn::NamedTensor& parameter : nn::named_parameters(from))
    tensors[parameter.name] = parameter.tensor;
  nn::load_parameters(nn::named_parameters(to), tensors, source);
}

/// The seconds that a micro-batch takes, forward and backward, and an evaluation; the weights stay.
std::array<double, 2> time_of(Task& task, Dtype precision);

/// The recipe in a line: "470 steps, rate 2e-4 after 47 steps of warm-up, …".
std::string recipe_of(const TrainingSettings& settings);
/// "a, b, c and 4 more".
std::string joined(const std::vector<std::string>& names);

/// Tells the leader's observers of columns of RunRequest::data that training does not read.
void warn_of_unused(const RunRequest& request, const std::vector<std::string>& columns);

/// Throws ValueError: more ranks than shards, an adapter without a model whose weights stay.
void check_request(const RunRequest& request, const TrainingSettings& settings);
/// The leader's folder; null on the other ranks.
std::unique_ptr<RunFolder> folder_of(const RunRequest& request);
/// The folder whose tokenizers a run has: its checkpoint's, so that a resumed run goes on with those it began
/// with, or those that it was given; empty: none.
std::string tokenizer_source(const RunRequest& request, const RunFolder& folder);
/// Throws ValueError if a resumed run is given a tokenizer by name that is not its own.
void check_named_tokenizer(const RunRequest& request, const RunFolder& folder,
                           FunctionRef<std::vector<uint64_t>(const std::string& source)> fingerprints);
/// The leader's tokenizer on every rank; `own` is null on the others.
text::Tokenizer share_tokenizer(distributed::Group* group, const text::Tokenizer* own);
/// The leader's, read or trained, on every rank.
text::Tokenizer tokenizer_of(const RunRequest& request, const RunFolder* folder,
                             FunctionRef<text::Tokenizer()> train);

/// Throws ValueError naming the first rank whose build, instruction set, data, settings or weights, where
/// every rank reads them, are others than the leader's. All ranks call it.
void check_alike(const RunRequest& request, const TrainingSettings& settings, const Json& identity,
                 const std::vector<nn::NamedTensor>& weights = {});

/// The weights that training starts from, on every rank: those of load(init), if it is given and the run
/// begins or adapts it, else the leader's own.
template <class Model, class Load>
void share_start(const RunRequest& request, bool is_needed, Model& model, Load&& load) {
  if (request.leads() && is_needed && !request.init.empty()) {
    copy_weights(model, load(request.init), request.init);
  }
  if (request.group != nullptr) broadcast_weights(*request.group, nn::named_parameters(model));
}

/// Bytes of one rank while it trains this many weights, beside activations.
struct TrainingMemory {
  double weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + gradients + optimizer; }
};
TrainingMemory training_memory(const TrainingSettings& settings, int64_t weights, int ranks);

/// Throws MemoryError unless this many weights, their gradients and the optimiser's state fit into memory.
void check_training_memory(const TrainingSettings& settings, int64_t weights, int ranks = 1);

/// For kRunFile.
Json to_json(const RunRequest& request, const std::vector<Field>& settings);
/// For summary.json.
Json to_json(const RunSummary& summary);
/// The same with what its kind counts and measures.
template <std::derived_from<RunSummary> Summary>
Json to_json(const Summary& summary) {
  Json json = to_json(static_cast<const RunSummary&>(summary));
  if constexpr (requires { summary.counts(); }) {
    const Json counts = summary.counts();
    for (const JsonMember& count : counts.members()) json[count.key] = count.value;
  }
  if (summary.validation) json["validation"] = to_json(*summary.validation);
  return json;
}

}  // namespace multihead::train
