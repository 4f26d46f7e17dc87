#include "multihead/train/loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/distributed/collectives.h"
#include "multihead/train/parallel/context_parallel.h"

namespace multihead::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool all_finite(const Tensor& x) {
  for (const double value : x.to_vector<double>()) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

[[noreturn]] void fail_loss(double loss, int64_t step, const optim::ParameterList& parameters) {
  for (const auto& [name, tensor] : parameters.items()) {
    MH_CHECK(all_finite(tensor), NumericError, "step ", step, ": the loss is ", loss, " because ", name,
             " holds NaN or Inf");
  }
  throw NumericError(concat("step ", step, ": the loss is ", loss,
                            " although all weights are finite; the weights are those of the previous step, ",
                            "try a lower learning rate"));
}

}  // namespace

double EvalReport::perplexity() const { return std::exp(loss); }

TrainLoop::TrainLoop(Task& task, optim::Optimizer& optimizer, LoopOptions options,
                     std::vector<Observer*> observers)
    : task_(task), optimizer_(optimizer), options_(std::move(options)), observers_(std::move(observers)) {
  const LoopOptions& o = options_;
  MH_CHECK(!o.folder.empty(), ValueError, "train: the output folder has no name");
  MH_CHECK(o.steps > 0, ValueError, "train: steps must be positive, got ", o.steps);
  MH_CHECK(o.accumulate > 0, ValueError, "train: accumulate must be positive, got ", o.accumulate);
  MH_CHECK(o.clip >= 0 && std::isfinite(o.clip), ValueError,
           "train: clip must be finite and not negative (0: no clipping), got ", o.clip);
  MH_CHECK(o.log_every > 0, ValueError, "train: log_every must be positive, got ", o.log_every);
  MH_CHECK(o.eval_every >= 0 && o.save_every >= 0 && o.patience >= 0, ValueError,
           "train: eval_every, save_every and patience must not be negative");
  MH_CHECK(o.keep > 0, ValueError, "train: keep must be positive, got ", o.keep);
  optim::check(o.schedule);
  if (options_.save_every == 0) options_.save_every = o.eval_every;
}

Ending TrainLoop::run(const std::function<bool()>& should_stop) {
  should_stop_ = should_stop;
  start();
  const Ending ending = leads() ? lead() : follow();
  keeps_best_ = ending != Ending::interrupted && options_.restore_best && restore_best();
  kept_loss_ = keeps_best_ ? progress_.best_loss : progress_.last_loss;
  return ending;
}

Ending TrainLoop::lead() {
  Ending ending = Ending::finished;
  while (progress_.step < options_.steps) {
    if (is_stopping()) {
      ending = Ending::interrupted;
      break;
    }
    if (options_.patience > 0 && progress_.evaluations_since_best >= options_.patience) {
      ending = Ending::stopped_early;
      break;
    }
    give(Order::step);
    step();
    const bool new_best = is_due(options_.eval_every) && evaluate();
    if (is_kept_step(new_best)) save(false);
  }
  if (ending != Ending::interrupted && evaluated_step_ != progress_.step) {
    evaluate();
    if (stopping_) ending = Ending::interrupted;
  }
  // A run that ends with a model tries to keep that, where there is no room for the last checkpoint.
  const bool must_save = ending == Ending::interrupted;
  if (saved_step_ != progress_.step && (must_save || tried_step_ != progress_.step)) save(must_save);
  give(Order::end, static_cast<int64_t>(ending));
  return ending;
}

// Returns whether the weights are those of the best checkpoint now, as far as this rank knows.
bool TrainLoop::restore_best() {
  bool restores = false;
  if (leads() && progress_.best_step >= 0 && progress_.best_step != progress_.step) {
    const std::string best = io::checkpoint_path(options_.folder, progress_.best_step);
    for (const io::CheckpointInfo& info : io::list_checkpoints(options_.folder)) {
      if (info.path != best) continue;
      task_.load(best);
      restores = true;
    }
  }
  if (options_.parallel != nullptr) options_.parallel->broadcast_weights();
  return restores;
}

// Obeys the leader until it ends the run.
Ending TrainLoop::follow() {
  while (true) {
    std::array<int64_t, 2> order = {};
    options_.parallel->group().broadcast(0, std::as_writable_bytes(std::span(order)));
    if (order[0] == static_cast<int64_t>(Order::end)) return static_cast<Ending>(order[1]);
    if (order[0] == static_cast<int64_t>(Order::step)) {
      step();
    } else if (order[0] == static_cast<int64_t>(Order::evaluate)) {
      evaluate();
    } else {
      optimizer_state();
    }
  }
}

void TrainLoop::give(Order order, int64_t word) {
  if (options_.parallel == nullptr || !leads()) return;
  std::array<int64_t, 2> message = {static_cast<int64_t>(order), word};
  options_.parallel->group().broadcast(0, std::as_writable_bytes(std::span(message)));
}

void TrainLoop::start() {
  optim::StateMap state;
  if (leads()) {
    const auto found = open_run(options_.folder, options_.resume, options_.overwrite, options_.run);
    if (found) state = restore(found->path);
  }
  if (options_.parallel != nullptr) {
    share_start(state);
  } else if (!state.empty()) {
    optimizer_.load_state(state);
  }
  started_ = now() - progress_.seconds;
  if (!leads()) return;
  tell([&](Observer& o) { o.on_start(progress_.step, options_.steps); });
  const bool is_last = progress_.step == options_.steps;  // which run() looks after
  if (evaluated_step_ != progress_.step && !is_last && (progress_.step == 0 || is_due(options_.eval_every))) {
    if (evaluate()) passing_step_ = -1;  // the whole run would have written it now
  }
}

bool TrainLoop::is_stopping() {
  stopping_ = stopping_ || (should_stop_ && should_stop_());
  return stopping_;
}

int64_t Task::length() const { throw ValueError("train: this kind of run cannot cut its sequences"); }
std::unique_ptr<Task> Task::twin(std::vector<nn::NamedTensor>&) const { return nullptr; }

// The targets of every micro-batch of the step, on every rank: a mean over few counts for less than one over
// many.
std::vector<double> TrainLoop::targets() const {
  DataParallel* const parallel = options_.parallel;
  const int64_t each = options_.accumulate;
  const bool has_shards = parallel != nullptr && options_.context == nullptr;
  const int64_t shards = has_shards ? parallel->tree().shards() : 1;
  std::vector<double> targets(static_cast<size_t>(shards * each), 1);
  if (std::ssize(targets) == 1) return targets;  // which counts for all, whatever it has
  const int64_t begin = has_shards ? parallel->first_shard() * each : 0;
  const int64_t end = has_shards ? parallel->end_shard() * each : each;
  for (int64_t i = begin; i < end; ++i) {
    targets[static_cast<size_t>(i)] = task_.targets(progress_.step * shards * each + i);
  }
  if (has_shards) {
    distributed::all_gather(parallel->group(), std::span(targets),
                            [&](int rank) { return parallel->tree().first_shard(rank) * each; });
  }
  return targets;
}

// The micro-batches of one shard, which have `targets` of the step's `total`: its share of the loss.
TrainLoop::ShardLoss TrainLoop::backward(Task& task, int64_t shard, std::span<const double> targets,
                                         double total) const {
  const auto loss_of = [&](int64_t index) {
    const Autocast autocast(options_.precision);
    return task.loss(index);
  };
  const auto take = [this](const GradientSlot& leaf) { options_.parallel->take(leaf); };
  const bool leaves_early = options_.parallel != nullptr && options_.context == nullptr;
  ShardLoss loss;
  for (int64_t micro = 0; micro < options_.accumulate; ++micro) {
    const bool completes = leaves_early && micro + 1 == options_.accumulate;
    Tape tape;
    const Task::Loss part = loss_of(shard * options_.accumulate + micro);
    const double weight = targets[static_cast<size_t>(micro)] / (total > 0 ? total : 1) * part.share;
    const double value = part.value.item();
    // All ranks get the loss first: every rank fails with the same message.
    if (!std::isfinite(value) && options_.parallel == nullptr) {
      fail_loss(value, progress_.step, optimizer_.parameters());
    }
    tape.backward(part.value, Tensor::full(part.value.shape(), weight, part.value.dtype()),
                  completes ? take : Tape::LeafComplete());
    loss.loss += value * weight;
    loss.tokens += part.tokens;
  }
  return loss;
}

void TrainLoop::count(const ShardLoss& loss) {
  progress_.unreported_tokens += loss.tokens;
  progress_.tokens += loss.tokens;
}

// This rank's part of the step. Returns the loss of the whole.
double TrainLoop::backward_own() {
  DataParallel* const parallel = options_.parallel;
  const std::vector<double> all = targets();
  const double total = std::accumulate(all.begin(), all.end(), 0.0);
  if (parallel == nullptr) {
    const ShardLoss whole = backward(task_, progress_.step, all, total);
    count(whole);
    return whole.loss;
  }
  const int64_t terms = parallel->tree().shards();
  std::vector<ShardLoss> shards(static_cast<size_t>(terms));
  if (options_.context != nullptr) {
    options_.context->run([&](int64_t part, Task& task) {
      shards[static_cast<size_t>(part)] = backward(task, progress_.step, all, total);
    });
  }
  for (int64_t shard = parallel->first_shard(); shard < parallel->end_shard(); ++shard) {
    ShardLoss& own = shards[static_cast<size_t>(shard)];
    if (options_.context != nullptr) {
      options_.context->take_gradients(shard);
    } else {
      const auto each = static_cast<size_t>(options_.accumulate);
      own = backward(task_, progress_.step * terms + shard,
                     std::span(all).subspan(static_cast<size_t>(shard) * each, each), total);
    }
    own.stops = should_stop_ && should_stop_() ? 1 : 0;
    parallel->add(shard);
  }
  parallel->finish();
  exchange_losses(shards);
  std::vector<double> losses;
  for (const ShardLoss& shard : shards) losses.push_back(shard.loss);
  const double loss = parallel->tree().sum(losses);
  if (!std::isfinite(loss)) fail_loss(loss, progress_.step, parallel->all_parameters());
  return loss;
}

// Every rank's losses, tokens and wishes on every rank.
void TrainLoop::exchange_losses(std::vector<ShardLoss>& shards) {
  DataParallel& parallel = *options_.parallel;
  distributed::all_gather(parallel.group(), std::span(shards),
                          [&](int rank) { return parallel.tree().first_shard(rank); });
  for (int64_t shard = 0; shard < parallel.tree().shards(); ++shard) {
    const ShardLoss& part = shards[static_cast<size_t>(shard)];
    stopping_ = stopping_ || part.stops != 0;
    count(part);
  }
}

// Sets the clipping of the next optimiser step.
double TrainLoop::grad_norm() {
  const auto norm_of = [&] {
    if (options_.parallel == nullptr) return optimizer_.grad_norm();
    return options_.parallel->reduce();
  };
  try {
    const double norm = norm_of();
    if (options_.clip > 0) optimizer_.clip_to(norm, options_.clip);
    return norm;
  } catch (const NumericError& error) {
    throw NumericError(concat("step ", progress_.step, ": ", error.what(),
                              "; the weights are those of the previous step, try a lower learning rate"));
  }
}

void TrainLoop::step() {
  const double begin = now();
  optimizer_.zero_grad();
  optimizer_.set_lr(options_.schedule.at(progress_.step));
  progress_.unreported_loss += backward_own();
  const double norm = grad_norm();
  optimizer_.step();
  if (options_.parallel != nullptr) options_.parallel->share_weights();
  ++progress_.step;
  ++progress_.unreported_steps;
  const double end = now();
  progress_.unreported_seconds += end - begin;
  progress_.train_seconds += end - begin;
  progress_.seconds = end - started_;
  if (leads() && (is_due(options_.log_every) || progress_.step == options_.steps)) report(norm);
}

void TrainLoop::report(double grad_norm) {
  Progress& p = progress_;
  const double per_step = p.seconds / static_cast<double>(p.step);
  const StepReport report{
      .step = p.step,
      .steps = options_.steps,
      .loss = p.unreported_loss / static_cast<double>(p.unreported_steps),
      .learning_rate = optimizer_.lr(),
      .grad_norm = grad_norm,
      .tokens_per_second = static_cast<double>(p.unreported_tokens) / std::max(p.unreported_seconds, 1e-9),
      .tokens = p.tokens,
      .seconds = p.seconds,
      .seconds_left = per_step * static_cast<double>(options_.steps - p.step)};
  p.unreported_loss = p.unreported_seconds = 0;
  p.unreported_steps = p.unreported_tokens = 0;
  tell([&](Observer& o) { o.on_step(report); });
}

double merit(const std::string& best, double loss, const Figures& figures) {
  if (best == "loss") return -loss;
  const auto found = std::ranges::find(figures, best, &Figures::value_type::first);
  return found != figures.end() ? found->second : std::numeric_limits<double>::quiet_NaN();
}

void check_best(const std::string& best, const Figures* figures) {
  if (best == "loss") return;
  MH_CHECK(figures != nullptr, ValueError, "train: --best ", best,
           " needs data to evaluate on, such as --valid FILE");
  Enumeration known;
  known.add("loss");
  for (const auto& [name, value] : *figures) known.add(name);
  MH_CHECK(std::ranges::find(*figures, best, &Figures::value_type::first) != figures->end(), ValueError,
           "train: --best must be a figure of the evaluations, one of ", known, ", got ", quote(best, 60));
}

// Whether the latest evaluation is the best so far. That of the start, which has no checkpoint, is none, but patience
// goes by it, too. NaN is less than any number.
bool TrainLoop::compare() {
  Progress& p = progress_;
  const double now = merit(options_.best, p.last_loss, p.last_figures),
               most = merit(options_.best, p.best_loss, p.best_figures);
  const auto is_more_than = [&](double other) { return !std::isnan(now) && !(now <= other); };
  const bool is_best = p.step > 0 && is_more_than(most);
  const bool improves = is_best && is_more_than(merit(options_.best, p.first_loss, p.first_figures));
  p.evaluations_since_best = improves || p.step == 0 ? 0 : p.evaluations_since_best + 1;
  if (!is_best) return false;
  p.best_loss = p.last_loss, p.best_figures = p.last_figures, p.best_step = p.step;
  return true;
}

// Returns whether this is the best one so far.
bool TrainLoop::evaluate() {
  give(Order::evaluate);
  const std::optional<double> measured =
      task_.evaluate({.should_stop = [this] { return is_stopping(); }, .group = group()});
  stopping_ = on_any(group(), stopping_);
  if (stopping_) return false;
  evaluated_step_ = progress_.step;
  progress_.seconds = now() - started_;
  if (!measured) {
    check_best(options_.best, nullptr);
    return false;
  }
  const double loss = *measured;
  if (!std::isfinite(loss)) fail_loss(loss, progress_.step, optimizer_.parameters());
  progress_.last_loss = loss, progress_.last_figures = task_.metrics();
  if (progress_.step == 0) progress_.first_loss = loss, progress_.first_figures = progress_.last_figures;
  check_best(options_.best, &progress_.last_figures);
  const bool is_best = compare();
  tell([&](Observer& o) { o.on_evaluation({progress_.step, loss, is_best, progress_.last_figures}); });
  return is_best;
}

bool TrainLoop::is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }

}  // namespace multihead::train
