// A kind of training from its request to the trained model: all but its data, its loss and its score.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/io/safetensors.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/lora.h"
#include "multihead/train/model_card.h"
#include "multihead/train/tasks/kind.h"

namespace multihead::train {

/// The rates among the numbers of a score: neither its loss nor counts. Null, of what cannot be measured, is NaN.
inline Figures rates_of(const Json& score) {
  Figures rates;
  for (const JsonMember& m : score.members()) {
    const bool is_rate = m.value.kind() == Json::Kind::number || m.value.is_null();
    if (!is_rate || m.key.view() == "loss") continue;
    rates.emplace_back(m.key,
                       m.value.is_null() ? std::numeric_limits<double>::quiet_NaN() : m.value.as_double());
  }
  return rates;
}

/// The base of every kind of training. A kind adds its types Summary and Data, and
///
///   kind()                    its row of kinds()
///   preset(name)              its settings
///   read(run)                 its data, before the output folder exists: a refusal leaves nothing behind
///   pass(settings, data)      the micro-batches in a pass through the data
///   make(run, data)           the task
///   loss(), targets()         of a micro-batch
///   score(most, sharing)      of `most` validation examples, evenly spread, or of all (0); none without any
///   save()                    the model's files
///
/// and hides what it does otherwise. train_task() does the rest.
template <class SettingsType, class ModelType, class ScoreType>
class ModelTask : public Task {
 public:
  using Settings = SettingsType;
  using Score = ScoreType;
  using Run = RunOf<Settings>;
  using Summary = ScoredSummary<Score>;

  /// `make` adds the parameters that the folder of RunRequest::init does not hold to `fresh`. `data`:
  /// checksums of what is trained and evaluated on, by name. `sample`: validation examples per evaluation.
  ModelTask(Settings settings,
            FunctionRef<ModelType(const Settings& settings, std::vector<std::string>& fresh)> make, Json data,
            int64_t sample)
      : settings_(std::move(settings)),
        model_(make(settings_, fresh_)),
        data_id_(std::move(data)),
        sample_(sample) {}

  virtual std::optional<Score> score(int64_t most, const Sharing& sharing = {}) const = 0;

  std::optional<double> evaluate(const Sharing& sharing) override {
    const std::optional<Score> found = score(sample_, sharing);
    if (!found) return std::nullopt;
    latest_ = to_json(*found);
    return found->loss();
  }
  Figures metrics() const override { return rates(latest_); }
  virtual Figures rates(const Json& score) const { return rates_of(score); }
  void load(const std::string& path) override {
    auto& network = detail::network_of(model_);
    const std::string file = path + "/model.safetensors";
    if constexpr (requires { models::load_weights(network, file); }) {
      models::load_weights(network, file);
    } else {
      models::import_weights(nn::named_parameters(network), models::weight_map(network),
                             io::SafetensorsFile(file));
    }
  }
  Json identity() const override {
    Json identity = identity_of(settings_);
    for (const JsonMember& sum : data_id_.members()) identity[sum.key] = sum.value;
    return identity;
  }
  Json defaults() const override {
    Json defaults = identity_of(Settings{});
    const Json* validation = data_id_.find("validation");
    const Json samples = samples_of(settings_);
    // Of runs that did not write them down.
    if (validation != nullptr) defaults["validation"] = *validation;
    for (const JsonMember& member : samples.members()) defaults[member.key] = member.value;
    return defaults;
  }
  ModelType& model() { return model_; }
  const std::vector<std::string>& fresh() const { return fresh_; }

  /// The rate that choose_rate() begins with.
  static constexpr double kRate = 5e-5;
  /// The run as the loop computes it.
  static Run computed(Run run) { return run; }
  /// The data as the task takes it, where that depends on the leader's folder.
  template <class Read>
  static Read prepare(const Run&, const RunFolder*, Read read) {
    return read;
  }
  /// Folders beside the model: an earlier run's are removed, this one's written.
  void remove_modules(const RunFolder&) const {}
  void write_modules(const RunFolder&) const {}
  /// Told before the first step; notes to those who want to read along.
  std::vector<std::string> warnings() const { return {}; }
  std::vector<std::string> notes() const { return {}; }
  /// The units that the summary counts.
  void describe(Summary&) const {}
  /// Makes the model of the last weights, instead of taking the best checkpoint's. Returns whether it did.
  bool finish(const Run&) { return false; }
  bool keeps_best() const { return true; }

 protected:
  Settings settings_;
  std::vector<std::string> fresh_;
  ModelType model_;

 private:
  Json data_id_, latest_ = Json::object();
  int64_t sample_;
};

/// The kind of data in RunRequest::data and ::valid.
template <class Texts>
struct Files {
  Texts training, validation;
};
template <class Texts>
Files<Texts> read_files(const RunRequest& run,
                        Texts (*read)(const std::string& path, text::TableFormat format)) {
  Files<Texts> files = {read(run.data, run.format),
                        run.valid.empty() ? Texts() : read(run.valid, run.format)};
  warn_of_unused(run, files.training.unused);
  return files;
}

/// Checksums of a task's data.
inline Json data_id(const char* data, const DataSums& sums) {
  Json id = Json::object({{data, checksum_text(sums.training)}});
  id["validation"] =
      sums.validation != 0 ? checksum_text(sums.validation) : "";  // so that another one differs
  return id;
}
inline Json data_id(const char* data, const DataSums& sums, const text::Tokenizer& tokenizer) {
  Json id = data_id(data, sums);
  id["tokenizer_fingerprint"] = checksum_text(tokenizer.fingerprint());
  return id;
}

namespace detail {

/// Begins the leader's folder unless the run is resumed.
template <class T>
void begin_run(const T& task, const typename T::Run& run, RunFolder* folder) {
  if (folder == nullptr) return;
  if (!folder->checkpoint()) {
    task.remove_modules(*folder);
    auto settings = run.settings;
    Json record = to_json(run, fields(settings));
    if (T::kind().valid != nullptr) record["valid"] = io::path_to_json(run.valid);
    folder->begin(std::move(record));
  }
  task.write_modules(*folder);
}

/// What there is to say before the first step.
template <class T>
void announce(const T& task, const typename T::Run& run, const std::string& timed) {
  for (Observer* observer : run.leads() ? run.observers : std::vector<Observer*>()) {
    for (const std::string& note : task.notes()) observer->on_note(note);
    if (!timed.empty()) observer->on_note(timed);
    observer->on_note(recipe_of(run.settings));
    if (!run.init.empty() && !task.fresh().empty()) {
      observer->on_note(concat("new, with random weights: ", joined(task.fresh())));
    }
    for (const std::string& warning : task.warnings()) observer->on_warning(warning);
  }
}

/// The weights of init, into a model of the run's settings.
template <class T>
void start_weights(T& task, const typename T::Run& run, bool begins) {
  if constexpr (requires { T::load_init(run.init); }) {
    try {
      share_start(run, begins || run.settings.lora.rank > 0, task.model(), T::load_init);
    } catch (const FormatError&) {
      auto asked = run.settings, own = asked;
      start_from(own, run.init);
      refuse_other_sizes(model_fields(asked.model), model_fields(own.model), run.init);
      throw;
    }
  }
}

/// Evaluates one example for the names of the figures.
template <class T>
void check_best(const T& task, const std::string& best) {
  if (best == "loss") return;
  const std::optional<typename T::Score> score = task.score(1);
  const Figures figures = score ? task.rates(to_json(*score)) : Figures();
  train::check_best(best, score ? &figures : nullptr);
}

/// Writes the settings of a run that is extended into its record, once its checkpoint has been accepted and
/// before there is another.
class ExtensionRecorder : public Observer {
 public:
  ExtensionRecorder(RunFolder& folder, Json settings) : folder_(folder), settings_(std::move(settings)) {}
  void on_start(int64_t, int64_t) override {
    if (!folder_.is_recorded(settings_)) folder_.record(settings_);
  }

 private:
  RunFolder& folder_;
  Json settings_;
};

/// Null unless the resumed run is extended. A process that was killed before the first checkpoint of the new
/// length has left it on record: it counts as asked for, too.
template <class Run>
std::unique_ptr<Observer> extend(Run& run, const Run& given, RunFolder* folder) {
  if (folder == nullptr || !folder->checkpoint()) return nullptr;
  auto settings = given.settings;
  const Json all = to_json(fields(settings));
  run.extends = run.extends ||
                folder->is_recorded(Json::object({{"steps", all.at("steps")}, {"warmup", all.at("warmup")}}));
  if (!run.extends) return nullptr;
  auto recorder = std::make_unique<ExtensionRecorder>(*folder, all);
  run.observers.push_back(recorder.get());
  return recorder;
}

/// The best checkpoint in place of what finish() made of the last, if its loss is less.
template <class Outer>
void take_best_if_better(Outer& outer, const RunRequest& run, RunSummary& summary) {
  const Progress& p = summary.progress;
  const auto best = [&] { return io::checkpoint_path(run.folder, p.best_step); };
  const bool is_better =
      run.leads() && p.best_loss < summary.kept_loss && p.best_step >= 0 && node_at(best()) == Node::folder;
  if (!on_any(run.group, is_better)) return;
  if (run.leads()) outer.load(best());
  if (run.group != nullptr) broadcast_weights(*run.group, nn::named_parameters(outer.model()));
  summary.kept_loss = p.best_loss, summary.kept_figures = p.best_figures;
}

/// Trains `task`, or `outer` around it, and publishes the model with its summary unless interrupted.
template <class T, class Outer>
typename T::Summary run_to_end(T& task, Outer& outer, const typename T::Run& run, RunFolder* folder) {
  typename T::Summary summary;
  task.describe(summary);
  LoopOptions options = {.schedule = schedule_of(run.settings, run.settings.model.embed_dim),
                         .restore_best = task.keeps_best(),
                         .run = folder != nullptr ? folder->run() : ""};
  static_cast<RunSummary&>(summary) =
      run_task(outer, trained_parameters(outer.model()), run, run.settings, std::move(options));
  if (summary.ending == Ending::interrupted) return summary;
  if constexpr (requires { outer.merge(); }) outer.merge();  // where the leader's weights have arrived
  if (task.finish(run)) {
    summary.kept_loss = task.evaluate(run.sharing()).value_or(summary.kept_loss);
    summary.kept_figures = task.metrics();
    take_best_if_better(outer, run, summary);
  }
  summary.worse_than_start = is_worse_than_start(summary, run.settings.best);
  summary.validation = task.score(0, run.sharing());
  if (on_any(run.group, summary.validation && run.should_stop && run.should_stop())) {
    summary.validation.reset();
    summary.ending = Ending::interrupted;
  }
  if (summary.ending == Ending::interrupted || !run.leads()) return summary;
  io::CheckpointContents model;
  auto settings = run.settings;
  outer.save(model);
  model.files[kCardFile] = model_card(T::kind(), run, fields(settings), to_json(summary));
  folder->publish(model);
  folder->write_summary(to_json(summary));
  return summary;
}

inline void read_config(models::LanguageModelConfig& config, const Json& json, const std::string& where) {
  config = models::config_from_json(json, where);
}
inline void read_config(models::Seq2SeqConfig& config, const Json& json, const std::string& where) {
  config = models::seq2seq_config_from_json(json, where);
}
inline void read_config(models::ImageEncoderConfig& config, const Json& json, const std::string& where) {
  config = models::image_encoder_config_from_json(json, where);
}
inline void read_config(models::EncoderConfig& config, const Json& json, const std::string& where) {
  config = models::encoder_config_from_json(json, where);
}

}  // namespace detail

namespace detail {

/// Chooses the steps of a run that begins by the time that one of them takes, measured by the leader. Returns what
/// there is to say.
template <class T, class Data>
std::string choose_by_time(typename T::Run& run, Data& data, bool begins) {
  TrainingSettings& s = run.settings;
  const double seconds = seconds_of(s);
  std::array<double, 2> spent = {};
  if (run.leads() && seconds > 0 && begins) {
    T probe = T::make(run, data);
    const int64_t own = (std::max<int64_t>(s.shards, 1) + run.ranks() - 1) / run.ranks() * s.accumulate;
    spent = time_of(probe, dtype_of_products(s.precision));
    spent[0] *= static_cast<double>(own), spent[1] /= run.ranks();
  }
  if (run.group != nullptr) run.group->broadcast(0, std::as_writable_bytes(std::span(spent)));
  if (spent[0] == 0) return "";
  choose_steps(s, seconds, spent[0], spent[1]);
  return concat("--time ", s.time, " has room for ", s.steps, " steps of ", spent[0],
                " s and evaluations of ", spent[1], " s");
}

/// Chooses what depends on the data, in `run` and as the user is to see it.
template <class T, class Data>
std::string choose(typename T::Run& run, typename T::Run& given, Data& data, bool begins) {
  TrainingSettings& s = run.settings;
  const double micro_batches = static_cast<double>(s.accumulate * std::max<int64_t>(s.shards, 1));
  choose_rate(s, run.settings.model.embed_dim, T::kRate);
  const std::string note = choose_by_time<T>(run, data, begins);
  choose_length(s, static_cast<double>(T::pass(run.settings, data)) / micro_batches);
  MH_CHECK(s.warmup_steps <= s.steps || s.schedule == optim::ScheduleKind::noam || !is_given(run, "warmup"),
           ValueError, "train: a --warmup of ", s.warmup_steps, " steps never reaches the rate: there are ",
           s.steps);
  optim::check(schedule_of(s, run.settings.model.embed_dim));
  TrainingSettings& shown = given.settings;
  shown.steps = s.steps, shown.epochs = s.epochs, shown.lr = s.lr;
  shown.warmup_steps = s.warmup_steps, shown.eval_every = s.eval_every;
  return note;
}

}  // namespace detail

/// Trains a model of any kind. Throws IoError, FormatError (data, checkpoints), ValueError (settings),
/// NumericError. An interrupted run leaves a checkpoint and no model.
template <class T>
typename T::Summary train_task(const typename T::Run& request) {
  check_request(request, T::kind());
  typename T::Run given = request;
  given.settings.shards = shards_of(given.settings, given.ranks());
  check(given.settings);
  check_request(given, given.settings);
  typename T::Run run = T::computed(given);
  check_training_memory(run.settings, models::matrix_weights(least_model(run.settings)), run.ranks());
  auto read = T::read(run);
  const std::unique_ptr<RunFolder> folder = folder_of(run);
  auto data = T::prepare(run, folder.get(), std::move(read));
  const std::string timed = detail::choose<T>(run, given, data, folder == nullptr || !folder->checkpoint());
  T task = T::make(run, data);
  auto& network = detail::network_of(task.model());
  check_training_memory(run.settings, nn::parameter_count(network), run.ranks());
  check_alike(run, run.settings, task.identity(), nn::named_parameters(network));
  const std::unique_ptr<Observer> extension = detail::extend(run, given, folder.get());
  const bool begins = folder != nullptr && !folder->checkpoint();
  detail::start_weights(task, run, begins);
  detail::check_best(task, run.settings.best);
  // All that can be refused before the first step has been.
  const auto begin_and_run = [&](auto& outer) {
    detail::begin_run(task, given, folder.get());
    detail::announce(task, run, timed);
    try {
      return detail::run_to_end(task, outer, run, folder.get());
    } catch (const ValueError&) {  // but for what the first evaluation refuses
      if (begins) task.remove_modules(*folder), folder->withdraw();
      throw;
    }
  };
  if constexpr (requires { detail::task_type(network); }) {
    if (run.settings.lora.rank > 0) {
      LoraTask<T> adapted(task, run.settings, run.init);
      return begin_and_run(adapted);
    }
  }
  return begin_and_run(task);
}

/// For Kind::make.
template <class T>
class TaskRun final : public AnyRun {
 public:
  static std::unique_ptr<AnyRun> make() { return std::make_unique<TaskRun>(); }

  RunRequest& request() override { return run_; }
  std::vector<Field> settings() override { return fields(run_.settings); }
  void set_preset(const std::string& name) override { run_.settings = T::preset(name), run_.preset = name; }
  void start_from_init() override { start_from(run_.settings, run_.init); }
  Json model() const override {
    auto config = run_.settings.model;
    if constexpr (requires { run_.settings.positions; })
      config.context = std::max(config.context, run_.settings.positions);
    return models::whole_config_to_json(config);
  }
  void set_model(const Json& config, const std::string& where) override {
    detail::read_config(run_.settings.model, config, where);
    if constexpr (requires { run_.settings.positions; })
      run_.settings.positions = run_.settings.model.context;
  }
  void check_settings() const override {
    check(run_.settings);
    auto settings = run_.settings;
    decltype(settings) defaults;
    refuse_unused(run_, fields(settings), fields(defaults));
    if constexpr (requires { settings.max_length; }) {
      MH_CHECK(!is_given(run_, "max-length") || settings.max_length <= settings.model.context, ValueError,
               "train: a --max-length of ", settings.max_length, " tokens is more than the model reads, ",
               settings.model.context);
    }
  }
  Json train() const override {
    check_settings();
    if constexpr (requires { T::train(run_); }) {
      return to_json(T::train(run_));
    } else {
      return to_json(train_task<T>(run_));
    }
  }

 private:
  typename T::Run run_;
};

}  // namespace multihead::train
