// multihead train lm | seq2seq
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/parallel.h"
#include "multihead/distributed/world.h"
#include "multihead/io/json.h"
#include "multihead/train/language_model_run.h"
#include "multihead/train/progress.h"
#include "multihead/train/seq2seq_run.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

/// The flags of a run, its start, its end. `Run` is a train::RunRequest with settings, `Summary` a
/// train::RunSummary.
template <class Run, class Summary>
class TrainVerb : public Verb {
 public:
  using Verb::Verb;

  int run(const CommonOptions& common) final {
    if (run_.folder.empty())
      throw UsageError(concat("--out DIR is required; see multihead ", name, " --help"));
    read_record();
    if (run_.data.empty())
      throw UsageError(concat("--data FILE is required; see multihead ", name, " --help"));
    check(run_.settings);
    const std::shared_ptr<distributed::Group> group = distributed::world();
    run_.group = group.get();
    if (group->size() > 1 && common.threads == 0) set_num_threads(distributed::threads_per_rank());
    for (const auto& [key, path] : paths()) check_readable(key, *path);
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

  /// What follows the verb's own flags.
  void declare_run(Flags& flags, const std::vector<std::string>& presets, const char* tokenizer_help) {
    flags.text("out", "DIR", run_.folder,
               "folder for model, checkpoints and metrics; must hold nothing else of these names (required)");
    flags.choice("preset", preset_, presets, "base settings");
    flags.text("init", "DIR", run_.init,
               "fine-tune: start from the model, weights and tokenizer of this folder");
    flags.text("tokenizer-file", "PATH", run_.tokenizer, tokenizer_help);
    flags.flag("resume", run_.resume, "continue from the newest checkpoint in --out, if any");
    flags.flag("overwrite", run_.overwrite, "delete an existing run in --out, its model first");
    given_.declare(flags, [this](Flags& own) {
      for (const train::Field& field : fields(run_.settings)) own.setting(field);
    });
  }

  Run run_;

 private:
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

  std::string preset_ = "tiny";
  GivenFlags given_;
};

class TrainLm : public TrainVerb<train::LanguageModelRun, train::LanguageModelSummary> {
 public:
  TrainLm()
      : TrainVerb(
            "train lm", "train a language model on a text file",
            {{"multihead train lm --data austen.txt --out model --preset tiny",
              "the demo: a few minutes on two cores"},
             {"multihead train lm --data austen.txt --out model --resume", "continue an interrupted run"},
             {"mpirun -n 4 multihead train lm --data austen.txt --out model",
              "on four processes or machines; the weights of one"},
             {"multihead train lm --data mine.txt --out tuned --init model --lr 1e-4", "fine-tune a model"},
             {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
              "custom sizes, character tokens"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data, "training text, UTF-8");
    declare_run(flags, train::language_model_presets(), "use this tokenizer.json (or its folder)");
  }

 private:
  train::LanguageModelSettings preset(const std::string& name) const override {
    return train::language_model_settings(name);
  }
  train::LanguageModelSummary train(const train::LanguageModelRun& run) const override {
    return train_language_model(run);
  }

  void print(const train::LanguageModelSummary& summary) const override {
    const train::Progress& p = summary.progress;
    fmt::print("{} parameters, {} steps, {} tokens in {} ({:.0f} tokens/s)\n", summary.parameters, p.step,
               p.tokens, train::duration_text(p.seconds), summary.tokens_per_second);
    if (!summary.validation) return;
    const train::TextLoss& v = *summary.validation;
    fmt::print(
        "validation loss {:.4f} -> {:.4f} nats per token, {:.4f} nats per character, {:.4f} bits per byte\n",
        p.first_loss, v.loss(), v.nats_per_character(), v.bits_per_byte());
  }
};

class TrainSeq2Seq : public TrainVerb<train::Seq2SeqRun, train::Seq2SeqSummary> {
 public:
  TrainSeq2Seq()
      : TrainVerb("train seq2seq", "train a translator on sentence pairs",
                  {{"multihead train seq2seq --data train.tsv --valid valid.tsv --out model",
                    "source TAB target on every line"},
                   {"multihead train seq2seq --data train.tsv --valid valid.tsv --out model --resume",
                    "continue an interrupted run"},
                   {"multihead train seq2seq --data t.tsv --valid v.tsv --out m --preset small --average 4",
                    "a larger model, average of its last four checkpoints"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data, "training pairs: source TAB target per line, UTF-8");
    flags.text("valid", "FILE", run_.valid, "validation pairs; without them there is no evaluation");
    declare_run(flags, train::seq2seq_presets(), "use the tokenizers of this folder (or tokenizer.json)");
  }

 private:
  train::Seq2SeqSettings preset(const std::string& name) const override {
    return train::seq2seq_settings(name);
  }
  Paths paths() override {
    return {{"data", &run_.data}, {"tokenizer", &run_.tokenizer}, {"valid", &run_.valid}};
  }
  train::Seq2SeqSummary train(const train::Seq2SeqRun& run) const override { return train_seq2seq(run); }

  void print(const train::Seq2SeqSummary& summary) const override {
    const train::Progress& p = summary.progress;
    fmt::print("{} parameters, {} pairs, {} steps, {} target tokens in {} ({:.0f} tokens/s)\n",
               summary.parameters, summary.pairs, p.step, p.tokens, train::duration_text(p.seconds),
               summary.tokens_per_second);
    if (!summary.validation) return;
    fmt::print("validation loss {:.4f} -> {:.4f} nats per token\n", p.first_loss, summary.validation->loss());
  }
};

}  // namespace

std::unique_ptr<Verb> make_train_lm() { return std::make_unique<TrainLm>(); }
std::unique_ptr<Verb> make_train_seq2seq() { return std::make_unique<TrainSeq2Seq>(); }

}  // namespace multihead::cli
