// The checkpoints of a run: written, pruned, resumed from.
#include <algorithm>
#include <array>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/config.h"
#include "multihead/io/directory.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/io/staging.h"
#include "multihead/train/fields.h"
#include "multihead/train/loop.h"

namespace multihead::train {
namespace {

constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr int kStateVersion = 1;

// "seed was 1, is 2; …"
std::string differences(const Json& before, const Json& after) {
  std::string text;
  auto append = [&](const std::string& key, const Json* was, const Json* is) {
    text += concat(text.empty() ? "" : "; ", key, " was ", was ? was->dump() : "absent", ", is now ",
                   is ? is->dump() : "absent");
  };
  for (const JsonMember& member : before.members()) {
    const Json* is = after.find(member.key);
    if (is == nullptr || !(*is == member.value)) append(member.key, &member.value, is);
  }
  for (const JsonMember& member : after.members()) {
    if (!before.contains(member.key)) append(member.key, nullptr, &member.value);
  }
  return text;
}

bool differ(const Json& before, const Json& now, std::string_view key) {
  const Json *was = before.find(key), *is = now.find(key);
  return was == nullptr || is == nullptr || !(*was == *is);
}

// Checkpoints of earlier versions have none.
Figures figures_from(io::ConfigReader& in, const char* key) {
  Figures figures;
  const Json* found = in.find(key);
  if (found == nullptr) return figures;
  io::ConfigReader object = in.child(key);
  for (const JsonMember& m : found->members()) {
    figures.emplace_back(m.key, object.number_or(m.key.view(), std::numeric_limits<double>::quiet_NaN()));
  }
  return figures;
}

}  // namespace

Json to_json(const Figures& figures) {
  Json json = Json::object();
  for (const auto& [name, value] : figures) json[name] = number_or_null(value);
  return json;
}

Json to_json(const Progress& p) {
  return Json::object({{"step", p.step},
                       {"tokens", p.tokens},
                       {"seconds", p.seconds},
                       {"train_seconds", p.train_seconds},
                       {"first_loss", number_or_null(p.first_loss)},
                       {"last_loss", number_or_null(p.last_loss)},
                       {"best_loss", number_or_null(p.best_loss)},
                       {"first_figures", to_json(p.first_figures)},
                       {"last_figures", to_json(p.last_figures)},
                       {"best_figures", to_json(p.best_figures)},
                       {"best_step", p.best_step},
                       {"evaluations_since_best", p.evaluations_since_best},
                       {"unreported_loss", number_or_null(p.unreported_loss)},
                       {"unreported_seconds", p.unreported_seconds},
                       {"unreported_steps", p.unreported_steps},
                       {"unreported_tokens", p.unreported_tokens}});
}

Progress progress_from_json(io::ConfigReader& in) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr io::IntegerRange kCount = {.min = 0, .max = int64_t{1} << 53};  // room to count on
  constexpr io::NumberRange kSeconds = {.min = 0};
  Progress p;
  p.step = in.integer("step", kCount);
  p.tokens = in.integer("tokens", kCount);
  p.seconds = in.number("seconds", kSeconds);
  p.train_seconds = in.number("train_seconds", kSeconds);
  p.first_loss = in.number_or("first_loss", kNan);
  p.last_loss = in.number_or("last_loss", kNan);
  p.best_loss = in.number_or("best_loss", std::numeric_limits<double>::infinity());
  in.ignore({"best_figure"});  // of earlier versions, which is one of best_figures
  p.first_figures = figures_from(in, "first_figures");
  p.last_figures = figures_from(in, "last_figures");
  p.best_figures = figures_from(in, "best_figures");
  p.best_step = in.integer("best_step", {.min = -1, .max = p.step});
  p.evaluations_since_best = in.integer("evaluations_since_best", kCount);
  p.unreported_loss = in.number_or("unreported_loss", 0);  // this and the next: earlier versions had none
  p.unreported_seconds = in.number_or("unreported_seconds", 0, kSeconds);
  p.unreported_steps = in.integer_or("unreported_steps", 0, kCount);
  p.unreported_tokens = in.integer_or("unreported_tokens", 0, kCount);
  if (p.best_step == 0) {  // of earlier versions: the start, which has no checkpoint
    const Progress none;
    p.best_step = none.best_step, p.best_loss = none.best_loss;
    p.best_figures = {};
  }
  return p;
}

std::optional<io::CheckpointInfo> open_run(const std::string& folder, bool resume, bool overwrite,
                                           const std::string& run) {
  io::refuse_foreign("train", folder, io::foreign_checkpoints(folder, run));
  io::remove_leftovers(folder);
  const std::vector<io::CheckpointInfo> found = io::list_checkpoints(folder);
  if (found.empty()) return std::nullopt;
  if (resume) return found.back();
  MH_CHECK(overwrite, ValueError, "train: ", folder, " holds a run of ", found.back().step,
           " steps; resume it, overwrite it, or choose another folder");
  for (const io::CheckpointInfo& info : found) io::remove_directory_atomically(info.path, run);
  return std::nullopt;
}

// Returns the optimiser's state.
optim::StateMap TrainLoop::restore(const std::string& path) {
  io::verify_checkpoint(path);
  const std::string file = path + "/" + kStateFile;
  io::ConfigReader state(io::load_json(file), file);
  const int64_t version = state.integer("format_version");
  MH_CHECK(version == kStateVersion, FormatError, file, ": format version ", version, ", expected ",
           kStateVersion);
  const Json* identity = state.find("identity");
  MH_CHECK(identity != nullptr && identity->is_object(), FormatError, file,
           ": \"identity\" must be an object");
  Json now = task_.identity();
  Json before = Json::object();
  for (const JsonMember& member : identity->members()) before[current_name(member.key)] = member.value;
  if (options_.extends && differ(before, now, "steps")) {
    for (const char* name : {"steps", "warmup"}) now.erase(name), before.erase(name);
  }
  const Json defaults = task_.defaults();
  for (const JsonMember& setting : defaults.members()) {  // of runs from before there was a choice
    if (now.contains(setting.key) && !before.contains(setting.key)) before[setting.key] = setting.value;
  }
  const std::string changed = differences(before, now);
  MH_CHECK(changed.empty(), ValueError, "train: cannot resume ", path, " with other settings: ", changed);
  io::ConfigReader saved = state.child("progress");
  const Progress progress = progress_from_json(saved);
  MH_CHECK(progress.step <= options_.steps, ValueError, "train: ", path, " is beyond the ", options_.steps,
           " steps requested");
  const int64_t evaluated_step = state.integer("evaluated_step", {.min = -1, .max = progress.step});
  optim::StateMap optimizer_state = io::load_safetensors(path + "/" + kOptimizerFile);
  task_.load(path);
  progress_ = progress;
  saved_step_ = progress_.step;
  evaluated_step_ = evaluated_step;
  const bool is_best = progress_.best_step == progress_.step;
  if (state.boolean_or("passing", false) && !is_kept_step(is_best)) passing_step_ = progress_.step;
  return optimizer_state;
}

// The others begin where the leader does.
void TrainLoop::share_start(const optim::StateMap& state) {
  DataParallel& parallel = *options_.parallel;
  parallel.broadcast_weights();
  std::array<int64_t, 3> counts = {progress_.step, progress_.tokens, state.empty() ? 0 : 1};
  parallel.group().broadcast(0, std::as_writable_bytes(std::span(counts)));
  progress_.step = counts[0], progress_.tokens = counts[1];
  if (counts[2] != 0) parallel.scatter_state(state, optimizer_);
}

optim::StateMap TrainLoop::optimizer_state() const {
  return options_.parallel != nullptr ? options_.parallel->gather_state(optimizer_) : optimizer_.state();
}

// A checkpoint alone, without what the run began with, could not be resumed.
void TrainLoop::check_folder() const {
  if (options_.run.empty() || node_at(io::join(options_.folder, io::kRunFile)) != Node::absent) return;
  throw IoError(concat("train: the run stops at step ", progress_.step, ": its folder ",
                       quote(options_.folder, 400), " has vanished, or its ", io::kRunFile, " has"));
}

// Whether a run that nothing stops writes a checkpoint of this step.
bool TrainLoop::is_kept_step(bool new_best) const { return is_due(options_.save_every) || new_best; }

// The best one and the newest. Where the mean of the last ones may be the model, a best one between those of the plan
// takes the place of none of them.
std::vector<int64_t> TrainLoop::kept_steps() const {
  const int64_t every = options_.save_every;
  std::vector<int64_t> newest;
  for (const io::CheckpointInfo& info : io::list_checkpoints(options_.folder)) {
    const bool counts = options_.restore_best || (every > 0 && info.step % every == 0);
    if (counts && info.problem.empty() && info.step != progress_.step) newest.push_back(info.step);
  }
  const int64_t count = std::min(options_.keep - 1, std::ssize(newest));  // besides this step's
  std::vector<int64_t> kept(newest.end() - count, newest.end());
  kept.push_back(progress_.best_step);
  return kept;
}

// A checkpoint that only a stop has left would take the place of one that the whole run keeps, or be part of a mean.
void TrainLoop::drop_passing() {
  if (passing_step_ < 0 || passing_step_ == progress_.step) return;
  const std::string path = io::checkpoint_path(options_.folder, passing_step_);
  try {
    if (node_at(path) == Node::folder && io::foreign_directory(path, options_.run).empty())
      io::remove_directory_atomically(path, options_.run);
    passing_step_ = -1;
  } catch (const IoError& error) {
    tell([&](Observer& o) {
      o.on_warning(concat("the checkpoint of an interruption stays: ", error.what()));
    });
  }
}

void TrainLoop::save(bool must_succeed) {
  check_folder();
  tried_step_ = progress_.step;
  give(Order::save);
  io::CheckpointContents contents;
  task_.save(contents);
  contents.tensors[kOptimizerFile] = optimizer_state();
  contents.files[kStateFile] = Json::object({{"format_version", kStateVersion},
                                             {"identity", task_.identity()},
                                             {"progress", to_json(progress_)},
                                             {"evaluated_step", evaluated_step_},
                                             {"passing", stopping_}})
                                   .dump(2) +
                               "\n";
  try {
    const std::string path = io::save_checkpoint(options_.folder, progress_.step, contents, options_.run);
    saved_step_ = progress_.step;
    drop_passing();
    io::prune_checkpoints(options_.folder, {.keep_newest = 1, .steps = kept_steps(), .run = options_.run});
    tell([&](Observer& o) { o.on_checkpoint(path); });
  } catch (const IoError& error) {
    if (must_succeed) throw;
    tell([&](Observer& o) {
      o.on_warning(concat("the checkpoint of step ", progress_.step, " was not saved: ", error.what()));
    });
  }
}

}  // namespace multihead::train
