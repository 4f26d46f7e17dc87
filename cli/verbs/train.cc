// multihead train lm | seq2seq | classifier | …: the rows of train::kinds().
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "cli/parser.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/world.h"
#include "multihead/io/json.h"
#include "multihead/train/progress.h"
#include "multihead/train/signals.h"
#include "multihead/train/tasks/kind.h"

namespace multihead::cli {
namespace {

class TrainVerb : public Verb {
 public:
  explicit TrainVerb(const train::Kind& kind)
      : Verb(concat("train ", kind.name), kind.about, kind.examples), kind_(kind), run_(kind.make()) {}

  void declare(Flags& flags) override {
    const char* const input = kind_.has_folders ? "DIR" : "FILE";
    flags.text("data", input, request_.data, kind_.data);
    if (kind_.valid != nullptr) flags.text("valid", input, request_.valid, kind_.valid);
    if (kind_.has_columns) declare_format(flags, request_.format);
    flags.text("out", "DIR", request_.folder,
               "output folder for model, checkpoints and metrics; files it did not write are not replaced "
               "(required)");
    if (!kind_.presets.empty()) flags.choice("preset", preset_, kind_.presets, "base settings");
    flags.text("init", "DIR", request_.init,
               kind_.presets.empty()
                   ? "folder of the model to fine-tune (required)"
                   : "fine-tune: start from the model, weights and tokenizer of this folder");
    if (kind_.tokenizer != nullptr) {
      flags.text("tokenizer-file", "PATH", request_.tokenizer, kind_.tokenizer);
    }
    flags.flag("resume", request_.resume, "continue from the newest checkpoint in --out, if any");
    flags.flag("overwrite", request_.overwrite, "delete an existing run in --out, its model first");
    run_->set_preset(preset_);
    given_.declare(flags, [this](Flags& own) {
      for (const train::Field& field : run_->settings()) {
        if (field.name != "attention")
          own.setting(field, kind_.presets.empty());  // which only a program that registers one can name
      }
    });
  }

  int run(const CommonOptions& common) override {
    require(request_.folder, "--out DIR");
    const std::string_view lengths[] = {"steps", "epochs", "time"};
    if (std::ranges::count_if(lengths, is_given) > 1)
      throw UsageError("give one of --steps, --epochs and --time");
    request_.given = given_flags();
    request_.extends = request_.resume && (is_given("steps") || is_given("epochs"));
    const std::shared_ptr<distributed::Group> group = distributed::world();
    request_.group = group.get();
    if (request_.leads()) read_record();
    if (group->size() > 1) share_record(*group);
    require(request_.data, "--data FILE");
    if (kind_.presets.empty()) require(request_.init, "--init DIR");
    run_->check_settings();
    refuse_unused_flags();
    if (group->size() > 1 && common.threads == 0) set_num_threads(distributed::threads_per_rank());
    for (const auto& [key, path] : paths()) {
      if (!kind_.has_folders && (request_.leads() || std::string_view(key) != "tokenizer"))
        check_readable(key, *path);
    }
    const train::StopSignals signals;
    request_.should_stop = [] { return train::StopSignals::received() != 0; };
    train::ProgressPrinter progress(std::cerr,
                                    {.terminal = isatty(STDERR_FILENO) == 1, .quiet = common.quiet});
    if (request_.leads()) request_.observers = {&progress};
    const Json summary = run_->train();
    const bool interrupted = summary.at("ending").as_string() == "interrupted";
    if (request_.leads()) report(common, summary, interrupted);
    return interrupted ? train::StopSignals::exit_code() : kDone;
  }

 private:
  void require(const std::string& value, const char* flag) const {
    if (value.empty()) throw UsageError(concat(flag, " is required; see multihead ", name, " --help"));
  }

  static bool is_given(std::string_view flag) {
    return std::ranges::find(given_flags(), flag) != given_flags().end();
  }

  // Flags that are no settings.
  void refuse_unused_flags() const {
    if (request_.resume) refuse_given("with --resume, which keeps what --out holds", {"overwrite"});
    if (!request_.init.empty())
      refuse_given("with --init, whose model and recipe take its place", {"preset"});
  }

  // The inputs but init: their names in a run's record, and where they go.
  std::vector<std::pair<const char*, std::string*>> paths() {
    std::vector<std::pair<const char*, std::string*>> list = {{"data", &request_.data}};
    if (kind_.tokenizer != nullptr) list.emplace_back("tokenizer", &request_.tokenizer);
    if (kind_.valid != nullptr) list.emplace_back("valid", &request_.valid);
    return list;
  }

  // Settings come from the preset or the resumed run, overridden by the command line; so do paths.
  void read_record() {
    run_->set_preset(preset_);
    const std::string given_init = request_.init, file = request_.folder + "/" + train::kRunFile;
    Json record;
    if (request_.resume && access(file.c_str(), F_OK) == 0) {
      reading([&] {
        record = io::load_json(file);
        if (record.contains("init")) request_.init = io::path_from_json(record.at("init"));
        if (record.contains("preset")) request_.preset = record.at("preset").as_string();
      });
      const auto differs = [](const char* flag, const std::string& recorded, const std::string& given) {
        throw UsageError(concat(flag, ": the run began from ", quote(recorded), ", got ", quote(given)));
      };
      if (!given_init.empty() && given_init != request_.init) differs("--init", request_.init, given_init);
      // Records of earlier versions do not say, and those of other models have none.
      const std::string& preset = request_.preset;
      if (is_given("preset") && !preset.empty() && preset != preset_) differs("--preset", preset, preset_);
    }
    reading([&] {
      if (!request_.init.empty()) run_->start_from_init();
      if (!record.is_null()) assign(record, file);
    });
    given_.set_again();
  }

  void assign(const Json& record, const std::string& where) {
    train::assign_all(run_->settings(), record.at("settings"), where);
    const Json* format = record.find("format");  // which records of earlier versions lack
    if (format != nullptr && request_.format == text::TableFormat::by_name) {
      request_.format = value_of<text::TableFormat>(format->as_string()).value_or(request_.format);
    }
    for (const auto& [key, path] : paths()) {
      // Records of earlier versions may lack a kind of file.
      if (path->empty() && record.contains(key)) *path = io::path_from_json(record.at(key));
    }
  }

  // The first rank's, for only it needs to see the folder and the model that training starts from.
  void share_record(distributed::Group& group) {
    Json record = Json::object({{"init", io::path_to_json(request_.init)}});
    if (request_.leads()) {
      record["settings"] = to_json(run_->settings());
      if (!request_.init.empty()) record["model"] = run_->model();
      record["format"] = word_of(request_.format);
      for (const auto& [key, path] : paths()) record[key] = io::path_to_json(*path);
    }
    record = Json::parse(group.broadcast_text(0, record.dump()), "rank 0");
    if (request_.leads()) return;
    run_->set_preset(preset_);
    request_.init = io::path_from_json(record.at("init"));
    if (record.contains("model")) run_->set_model(record.at("model"), "rank 0");
    assign(record, "rank 0");
    given_.set_again();  // so that another command line is refused
  }

  // Before anything is created. A tokenizer may be given as its folder.
  static void check_readable(std::string_view key, const std::string& path) {
    std::error_code ignored;
    const bool in_folder = key == "tokenizer" && std::filesystem::is_directory(path, ignored);
    if (!path.empty())
      reading([&] { return FileReader(in_folder ? path + "/tokenizer.json" : path).size(); });
  }

  void report(const CommonOptions& common, Json summary, bool interrupted) const {
    const Json& progress = summary.at("progress");
    if (common.json) {
      summary["folder"] = io::path_to_json(request_.folder);
      put_json(summary);
    } else if (interrupted) {
      fmt::print("stopped at step {}; continue with: multihead {} --out {} --resume\n",
                 progress.at("step").as_int(), name, printable(shell_word(request_.folder)));
    } else {
      print(summary, progress);
      fmt::print("model in {}\n", printable(request_.folder));
    }
  }

  void print(const Json& summary, const Json& progress) const {
    fmt::print("{} parameters trained", summary.at("parameters").as_int());
    const Json common = train::to_json(train::RunSummary());
    for (const JsonMember& m : summary.members()) {
      if (common.contains(m.key) || m.key.view() == "validation") continue;
      const auto count = m.value.is_array() ? static_cast<int64_t>(m.value.size()) : m.value.as_int();
      fmt::print(", {} {}", count, words(m.key));
    }
    fmt::print(", {} steps, {} tokens in {} ({:.0f} tokens/s)\n", progress.at("step").as_int(),
               progress.at("tokens").as_int(), train::duration_text(progress.at("seconds").as_double()),
               number(summary.at("tokens_per_second")));
    const Json* validation = summary.find("validation");
    if (validation == nullptr) return;
    const bool has_numbers = validation->contains("pearson") && std::string_view(kind_.name) == "classifier";
    fmt::print("validation loss {:.4f} -> {:.4f} {}", number(progress.at("first_loss")),
               number(summary.at("kept_loss")),
               has_numbers ? "mean squared error" : concat("nats per ", kind_.unit));
    const Json& kept = summary.at("kept_figures");
    for (const JsonMember& m : progress.at("first_figures").members()) {
      const Json* now = kept.find(m.key.view());
      if (now != nullptr) fmt::print(", {} {:.4f} -> {:.4f}", words(m.key), number(m.value), number(*now));
    }
    fmt::print("{}\n", summary.at("worse_than_start").as_bool() ? ": worse than the starting model" : "");
    std::string rates, counts;
    for (const JsonMember& m : validation->members()) {
      if (m.value.is_integer()) {
        counts += concat(counts.empty() ? "" : ", ", m.value.as_int(), " ", words(m.key));
      } else {
        rates += fmt::format("{} {} {:.4f}", rates.empty() ? "" : ",", words(m.key), number(m.value));
      }
    }
    fmt::print("all validation data ({}):{}\n", counts, rates);
  }

  // "macro_f1" -> "macro f1".
  static std::string words(std::string text) {
    std::ranges::replace(text, '_', ' ');
    return text;
  }
  static double number(const Json& json) { return json.is_null() ? NAN : json.as_double(); }

  const train::Kind& kind_;
  std::unique_ptr<train::AnyRun> run_;
  train::RunRequest& request_ = run_->request();
  std::string preset_ = "tiny";
  GivenFlags given_;
};

}  // namespace

void add_training(Verbs& verbs) {
  for (const train::Kind* kind : train::kinds()) verbs.push_back(std::make_unique<TrainVerb>(*kind));
}

}  // namespace multihead::cli
