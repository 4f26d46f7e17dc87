#include "multihead/train/run.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/optim/adam.h"
#include "multihead/optim/sgd.h"
#include "multihead/train/metrics.h"
#include "multihead/train/parallel/context_parallel.h"

namespace multihead::train {

RunSummary run_task(Task& task, const std::vector<nn::NamedTensor>& parameters, const RunRequest& request,
                    const TrainingSettings& s, LoopOptions options) {
  options.folder = request.folder, options.resume = request.resume, options.overwrite = request.overwrite;
  options.extends = request.extends;
  options.steps = s.steps, options.accumulate = s.accumulate, options.clip = s.clip;
  options.precision = dtype_of_products(s.precision);
  options.log_every = s.log_every, options.eval_every = s.eval_every, options.save_every = s.save_every;
  options.keep = s.keep, options.patience = s.patience, options.best = s.best;
  const std::unique_ptr<distributed::Group> alone = distributed::single();
  std::optional<DataParallel> parallel;
  std::optional<ContextParallel> context;
  distributed::Group& group = request.group != nullptr ? *request.group : *alone;
  if (terms_of(s, request.ranks()) > 1) {
    parallel.emplace(group, parameters, terms_of(s, request.ranks()));
    options.parallel = &*parallel;
  }
  if (s.context_shards > 1) {
    context.emplace(group, task, parameters, static_cast<int>(s.context_shards));
    options.context = &*context;
  }
  const auto optimizer = make_optimizer(s, parallel ? parallel->own_parameters() : parameters);
  std::vector<Observer*> observers = request.observers;
  MetricsWriter metrics(request.folder, observers.empty() ? nullptr : observers.front());
  observers.push_back(&metrics);
  if (!request.leads()) observers.clear();

  int64_t weights = 0;
  for (const nn::NamedTensor& p : parameters) weights += p.tensor.numel();
  const JobReport job = {.ranks = request.ranks(),
                         .threads = num_threads(),
                         .shards = terms_of(s, request.ranks()),
                         .bytes = training_memory(s, weights, request.ranks()).total()};
  if (job.ranks > 1) {
    for (Observer* observer : observers) observer->on_job(job);
  }
  TrainLoop loop(task, *optimizer, options, observers);
  RunSummary summary{.ending = loop.run(request.should_stop), .progress = loop.progress()};
  summary.kept_loss = loop.kept_loss(), summary.kept_figures = loop.kept_figures();
  summary.peak_bytes = memory_stats().peak_bytes;
  summary.parameters = weights;
  summary.tokens_per_second =
      static_cast<double>(summary.progress.tokens) / std::max(summary.progress.train_seconds, 1e-9);
  return summary;
}

bool is_worse_than_start(const RunSummary& s, const std::string& best) {
  return merit(best, s.kept_loss, s.kept_figures) <
         merit(best, s.progress.first_loss, s.progress.first_figures);
}

Rng dropout_rng(const TrainingSettings& settings, int64_t batch) {
  // Streams of the seed below this are for the initial weights; every micro-batch has its own 2^20 above.
  constexpr uint64_t kDropoutStreams = uint64_t{1} << 40, kStreamsPerBatch = uint64_t{1} << 20;
  return Rng(static_cast<uint64_t>(settings.seed),
             kDropoutStreams + static_cast<uint64_t>(batch) * kStreamsPerBatch);
}

std::array<double, 2> time_of(Task& task, Dtype precision) {
  constexpr int64_t kBatches = 3;  // after one that warms up
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  double begin = 0;
  for (int64_t i = 0; i <= kBatches; ++i) {
    if (i == 1) begin = now();
    Tape tape;
    const Autocast autocast(precision);
    tape.backward(task.loss(i).value);
  }
  const double middle = now();
  task.evaluate({});
  return {(middle - begin) / kBatches, now() - middle};
}

std::string recipe_of(const TrainingSettings& s) {
  std::string text =
      concat(s.steps, s.steps == 1 ? " step" : " steps", ", ", word_of(s.optimizer), ", ",
             word_of(s.schedule), " rate ", s.lr, " after ", s.warmup_steps, " steps of warm-up");
  const bool arrives = s.warmup_steps <= s.steps || s.schedule == optim::ScheduleKind::noam;
  if (!arrives) text += ", which it does not reach: give --warmup";
  if (s.lora.rank > 0) text += concat(", adapters of rank ", s.lora.rank);
  if (s.eval_every > 0) text += concat("; an evaluation every ", s.eval_every);
  if (s.patience > 0) text += concat(", the end after ", s.patience, " without improvement");
  return text;
}

void refuse_other_sizes(const std::vector<Field>& asked, const std::vector<Field>& own,
                        const std::string& init) {
  Enumeration different;
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool is_rate = std::holds_alternative<double*>(asked[i].value);  // dropout
    if (is_rate || asked[i].name == "context" || to_json(asked[i]) == to_json(own[i])) continue;
    different.add("--", asked[i].name, " ", text_of(asked[i]), " (it has ", text_of(own[i]), ")");
  }
  MH_CHECK(different.empty(), ValueError, "train: the model of --init ", init, " does not fit ", different,
           "; leave this out, or train a new model without --init");
}

std::string joined(const std::vector<std::string>& names) { return Enumeration(names, 6).text(); }

void warn_of_unused(const RunRequest& request, const std::vector<std::string>& columns) {
  if (columns.empty() || !request.leads()) return;
  const std::string message = concat(request.data, ": columns that are not used: ", joined(columns));
  for (Observer* observer : request.observers) observer->on_warning(message);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingSettings& s,
                                                 const std::vector<nn::NamedTensor>& parameters) {
  if (s.optimizer == OptimizerChoice::sgd) {
    return std::make_unique<optim::SGD>(
        parameters,
        optim::SgdOptions{
            .lr = s.lr, .momentum = s.momentum, .weight_decay = s.weight_decay, .decay_vectors = false});
  }
  const auto adam = [&](auto options) {
    options.lr = s.lr, options.weight_decay = s.weight_decay, options.decay_vectors = false;
    options.beta1 = s.beta1, options.beta2 = s.beta2;
    options.eps = s.eps, options.eps_hat = s.eps_hat;
    return options;
  };
  if (s.optimizer == OptimizerChoice::adam) {
    return std::make_unique<optim::Adam>(parameters, adam(optim::AdamOptions{}));
  }
  return std::make_unique<optim::AdamW>(parameters, adam(optim::AdamWOptions{}));
}

TrainingMemory training_memory(const TrainingSettings& s, int64_t weights, int ranks) {
  const bool sgd = s.optimizer == OptimizerChoice::sgd;
  const int moments = !sgd ? 2 : s.momentum > 0 ? 1 : 0;
  const double floats = 4 * static_cast<double>(weights);
  const int64_t shards = terms_of(s, ranks);
  if (shards == 1) return {.weights = floats, .gradients = floats, .optimizer = moments * floats};
  // One that is computed, or all parts of a sequence at a time, one sum for every level of the tree within
  // the rank, slices that arrive.
  const auto own = static_cast<uint64_t>((shards + ranks - 1) / ranks);
  const double computed = s.context_shards > 1 ? static_cast<double>(own) : 1;
  return {.weights = floats,
          .gradients = floats * (computed + std::bit_width(own - 1) + (ranks > 1 ? 0.5 : 0)),
          .optimizer = moments * floats / ranks};
}

void check_training_memory(const TrainingSettings& s, int64_t weights, int ranks) {
  check_memory(training_memory(s, weights, ranks).total(),
               concat("train: a model of ", weights, " weights, with gradients and optimizer"),
               "choose fewer or smaller layers");
}

Json to_json(const RunRequest& request, const std::vector<Field>& settings) {
  return Json::object({{"data", io::path_to_json(request.data)},
                       {"tokenizer", io::path_to_json(request.tokenizer)},
                       {"init", io::path_to_json(request.init)},
                       {"preset", request.init.empty() ? request.preset : ""},
                       {"format", word_of(request.format)},
                       {"settings", to_json(settings)}});
}

Json to_json(const RunSummary& s) {
  static constexpr const char* kEndings[] = {"finished", "stopped_early", "interrupted"};
  return Json::object({{"ending", kEndings[static_cast<int>(s.ending)]},
                       {"parameters", s.parameters},
                       {"tokens_per_second", number_or_null(s.tokens_per_second)},
                       {"peak_tensor_bytes", s.peak_bytes},
                       {"progress", to_json(s.progress)},
                       {"kept_loss", number_or_null(s.kept_loss)},
                       {"kept_figures", to_json(s.kept_figures)},
                       {"worse_than_start", s.worse_than_start}});
}

}  // namespace multihead::train
