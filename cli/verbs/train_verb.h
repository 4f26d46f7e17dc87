// The verbs that train: flags of a run, its start, its end.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/world.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/progress.h"
#include "multihead/train/run.h"
#include "multihead/train/signals.h"

namespace multihead::cli {

/// The flags of a run, its start, its end. `Run` is a train::RunRequest with settings, `Summary` a
/// train::RunSummary.
template <class Run, class Summary>
class TrainVerb : public Verb {
 public:
  using Verb::Verb;

  int run(const CommonOptions& common) final {
    if (run_.folder.empty())
      throw UsageError(concat("--out DIR is required; see multihead ", name, " --help"));
    const std::shared_ptr<distributed::Group> group = distributed::world();
    run_.group = group.get();
    if (run_.leads()) read_record();
    if (group->size() > 1) share_record(*group);
    if (run_.data.empty())
      throw UsageError(concat("--data FILE is required; see multihead ", name, " --help"));
    if (run_.init.empty() && needs_init_)
      throw UsageError(concat("--init DIR is required; see multihead ", name, " --help"));
    check(run_.settings);
    if (group->size() > 1 && common.threads == 0) set_num_threads(distributed::threads_per_rank());
    for (const auto& [key, path] : paths()) {
      if (run_.leads() || std::string_view(key) != "tokenizer") check_readable(key, *path);
    }
    const train::StopSignals signals;
    run_.should_stop = [] { return train::StopSignals::received() != 0; };
    train::ProgressPrinter progress(std::cerr,
                                    {.terminal = isatty(STDERR_FILENO) == 1, .quiet = common.quiet});
    if (run_.leads()) run_.observers = {&progress};
    const Summary summary = train(run_);
    if (run_.leads()) report(common, summary);
    return summary.ending == train::Ending::interrupted ? train::StopSignals::exit_code() : kDone;
  }

 protected:
  using Paths = std::vector<std::pair<const char*, std::string*>>;

  virtual decltype(Run::settings) preset(const std::string& name) const = 0;
  /// The inputs: their names in a run's record, and where they go.
  virtual Paths paths() { return {{"data", &run_.data}, {"tokenizer", &run_.tokenizer}}; }
  virtual Summary train(const Run& run) const = 0;
  virtual void print(const Summary& summary) const = 0;

  /// Before and after training, on the same sample: what the run's evaluations took.
  static void print_validation(const Summary& summary, const char* unit) {
    fmt::print("validation loss {:.4f} -> {:.4f} {}\n", summary.progress.first_loss, summary.kept_loss, unit);
  }

  /// What follows the verb's own flags.
  void declare_run(Flags& flags, const std::vector<std::string>& presets, const char* tokenizer_help) {
    declare_out(flags);
    flags.choice("preset", preset_, presets, "base settings");
    flags.text("init", "DIR", run_.init,
               "fine-tune: start from the model, weights and tokenizer of this folder");
    flags.text("tokenizer-file", "PATH", run_.tokenizer, tokenizer_help);
    declare_rest(flags);
  }
  /// The same of a verb that only fine-tunes.
  void declare_tuning(Flags& flags) {
    needs_init_ = true;
    flags.text("init", "DIR", run_.init, "folder of the encoder to fine-tune (required)");
    declare_out(flags);
    declare_rest(flags);
  }

  Run run_;

 private:
  void declare_out(Flags& flags) {
    flags.text("out", "DIR", run_.folder,
               "output folder for model, checkpoints and metrics; files it did not write are not replaced "
               "(required)");
  }
  void declare_rest(Flags& flags) {
    flags.flag("resume", run_.resume, "continue from the newest checkpoint in --out, if any");
    flags.flag("overwrite", run_.overwrite, "delete an existing run in --out, its model first");
    given_.declare(flags, [this](Flags& own) {
      for (const train::Field& field : fields(run_.settings)) own.setting(field);
    });
  }

  // Settings come from the preset or the resumed run, overridden by the command line; so do paths.
  void read_record() {
    run_.settings = preset(preset_);
    const std::string given_init = run_.init;
    const std::string file = run_.folder + "/" + train::kRunFile;
    const bool resumes = run_.resume && access(file.c_str(), F_OK) == 0;
    if (resumes) {
      reading([&] {
        const Json record = io::load_json(file);
        if (record.contains("init")) run_.init = io::path_from_json(record.at("init"));
      });
      if (!given_init.empty() && given_init != run_.init) {
        throw UsageError(
            concat("--init: the run began from ", quote(run_.init), ", got ", quote(given_init)));
      }
    }
    if (!run_.init.empty()) reading([&] { start_from(run_.settings, run_.init); });
    if (resumes) {
      reading([&] {
        const Json record = io::load_json(file);
        train::assign_all(fields(run_.settings), record.at("settings"), file);
        for (const auto& [key, path] : paths()) {
          if (path->empty()) *path = io::path_from_json(record.at(key));
        }
      });
    }
    given_.set_again();
  }

  // The first rank's, for only it needs to see the folder and the model that training starts from.
  void share_record(distributed::Group& group) {
    Json record = Json::object({{"init", io::path_to_json(run_.init)}});
    if (run_.leads()) {
      record["settings"] = to_json(fields(run_.settings));
      if (!run_.init.empty()) record["model"] = models::config_to_json(run_.settings.model);
      for (const auto& [key, path] : paths()) record[key] = io::path_to_json(*path);
    }
    record = Json::parse(group.broadcast_text(0, record.dump()), "rank 0");
    if (run_.leads()) return;
    run_.settings = preset(preset_);
    run_.init = io::path_from_json(record.at("init"));
    if (record.contains("model")) assign_config(run_.settings.model, record.at("model"));
    train::assign_all(fields(run_.settings), record.at("settings"), "rank 0");
    for (const auto& [key, path] : paths()) {
      if (path->empty()) *path = io::path_from_json(record.at(key));
    }
    given_.set_again();  // so that another command line is refused
  }
  static void assign_config(models::LanguageModelConfig& config, const Json& json) {
    config = models::config_from_json(json, "rank 0");
  }
  static void assign_config(models::Seq2SeqConfig& config, const Json& json) {
    config = models::seq2seq_config_from_json(json, "rank 0");
  }
  static void assign_config(models::EncoderConfig& config, const Json& json) {
    config = models::encoder_config_from_json(json, "rank 0");
  }

  // Before anything is created. A tokenizer may be given as its folder.
  static void check_readable(std::string_view key, const std::string& path) {
    std::error_code ignored;
    const bool in_folder = key == "tokenizer" && std::filesystem::is_directory(path, ignored);
    if (!path.empty())
      reading([&] { return FileReader(in_folder ? path + "/tokenizer.json" : path).size(); });
  }

  void report(const CommonOptions& common, const Summary& summary) const {
    if (common.json) {
      Json json = to_json(summary);
      json["folder"] = io::path_to_json(run_.folder);
      put_json(json);
    } else if (summary.ending == train::Ending::interrupted) {
      fmt::print("stopped at step {}; continue with: multihead {} --out {} --resume\n", summary.progress.step,
                 name, printable(run_.folder));
    } else {
      print(summary);
      fmt::print("model in {}\n", printable(run_.folder));
    }
  }

  bool needs_init_ = false;
  std::string preset_ = "tiny";
  GivenFlags given_;
};

}  // namespace multihead::cli
