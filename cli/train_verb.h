// Shared by the training verbs: the flags of a run, its start, its end.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "cli/setting_flags.h"
#include "multihead/core/files.h"
#include "multihead/io/json.h"
#include "multihead/train/progress.h"
#include "multihead/train/run.h"
#include "multihead/train/signals.h"

namespace multihead::cli {

/// `Run` is a train::RunRequest with settings, `Summary` a train::RunSummary.
template <class Run, class Summary>
class TrainVerb : public Verb {
 public:
  int run(const CommonOptions& common) final {
    if (out_.empty()) throw UsageError(concat("--out DIR is required; see multihead ", name(), " --help"));
    Run run = make_run();
    if (run.data.empty())
      throw UsageError(concat("--data FILE is required; see multihead ", name(), " --help"));
    check(run.settings);
    for (const std::string& file : input_files(run)) reading([&] { return FileReader(file).size(); });
    const train::StopSignals signals;
    run.should_stop = [] { return train::StopSignals::received() != 0; };
    train::ProgressPrinter progress(std::cerr,
                                    {.terminal = isatty(STDERR_FILENO) == 1, .quiet = common.quiet});
    run.observers = {&progress};
    const Summary summary = train(run);
    report(common, summary);
    return summary.ending == train::Ending::interrupted ? train::StopSignals::exit_code() : kDone;
  }

 protected:
  using Settings = decltype(Run::settings);

  virtual Settings preset(const std::string& name) const = 0;
  /// From the verb's own flags, else from the record of the resumed run (null: a new one).
  virtual void complete(Run& run, const Json* record) const { (void)run, (void)record; }
  /// What must exist before anything is created.
  virtual std::vector<std::string> input_files(const Run& run) const {
    std::vector<std::string> files = {run.data};
    if (!tokenizer_.empty()) files.push_back(tokenizer_file(tokenizer_));
    return files;
  }
  virtual Summary train(const Run& run) const = 0;
  virtual void print(const Summary& summary) const = 0;

  /// --data, which the verb describes, and what follows the verb's own flags.
  void declare_data(Flags& flags, const char* help) { flags.text("data", "FILE", data_, help); }
  void declare_run(Flags& flags, const std::vector<std::string>& presets, const char* tokenizer_help) {
    flags.text("out", "DIR", out_,
               "folder for model, checkpoints and metrics; must hold nothing else of these names (required)");
    flags.choice("preset", preset_, presets, "base settings");
    flags.text("tokenizer-file", "PATH", tokenizer_, tokenizer_help);
    flags.flag("resume", resume_, "continue from the newest checkpoint in --out, if any");
    flags.flag("overwrite", overwrite_, "delete an existing run in --out, its model first");
    setting_flags_.declare(flags, fields(shown_));
  }

 private:
  // Settings come from the preset or the resumed run, overridden by the command line.
  Run make_run() const {
    Run run;
    run.settings = preset(preset_);
    run.data = data_;
    run.tokenizer = tokenizer_;
    run.folder = out_;
    run.resume = resume_;
    run.overwrite = overwrite_;
    const std::vector<train::Field> list = fields(run.settings);
    const std::optional<Json> record = read_run_record(out_, resume_, list);
    if (record && run.data.empty()) run.data = path_of(*record, "data");
    if (record && run.tokenizer.empty()) run.tokenizer = path_of(*record, "tokenizer");
    complete(run, record ? &*record : nullptr);
    setting_flags_.apply(list);
    return run;
  }

  static std::string tokenizer_file(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored) ? path + "/tokenizer.json" : path;
  }

  void report(const CommonOptions& common, const Summary& summary) const {
    if (common.json) {
      Json json = to_json(summary);
      json["folder"] = io::path_to_json(out_);
      fmt::print("{}\n", json.dump(2));
    } else if (summary.ending == train::Ending::interrupted) {
      fmt::print("stopped at step {}; continue with: multihead {} --out {} --resume\n", summary.progress.step,
                 name(), printable(out_));
    } else {
      print(summary);
      fmt::print("model in {}\n", printable(out_));
    }
  }

  std::string data_, out_, tokenizer_, preset_ = "tiny";
  bool resume_ = false, overwrite_ = false;
  Settings shown_;  // lists the fields only
  SettingFlags setting_flags_;
};

}  // namespace multihead::cli
