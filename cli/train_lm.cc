// multihead train lm
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "cli/setting_flags.h"
#include "multihead/io/files.h"
#include "multihead/train/language_model_run.h"
#include "multihead/train/progress.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

class TrainLm : public Verb {
 public:
  std::string name() const override { return "train lm"; }
  std::string summary() const override { return "train a language model on a text file"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {
        {"multihead train lm --data austen.txt --out model --preset tiny", "the demo: minutes on two cores"},
        {"multihead train lm --data austen.txt --out model --resume", "go on where a killed run stopped"},
        {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
         "sizes of your own, characters as tokens"}};
  }

  void declare(Flags& flags) override {
    flags.text("data", "FILE", data_, "training text, UTF-8");
    flags.text("out", "DIR", out_, "folder for model, checkpoints and metrics (required)");
    flags.choice("preset", preset_, train::language_model_presets(), "settings to start from");
    flags.text("tokenizer-file", "PATH", tokenizer_, "use this tokenizer.json (or its folder)");
    flags.flag("resume", resume_, "go on from the newest checkpoint in --out, if there is one");
    flags.flag("overwrite", overwrite_, "replace an earlier run in --out");
    settings_.declare(flags, train::fields(shown_));
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out DIR is required; see multihead train lm --help");
    train::LanguageModelRun run = make_run();
    if (run.data.empty()) throw UsageError("--data FILE is required; see multihead train lm --help");
    train::check(run.settings);
    reading([&] { return io::FileReader(run.data).size(); });
    const train::StopSignals signals;
    run.should_stop = [] { return train::StopSignals::received() != 0; };
    train::ProgressPrinter progress(std::cerr,
                                    {.terminal = isatty(STDERR_FILENO) == 1, .quiet = common.quiet});
    run.observers = {&progress};
    const train::LanguageModelSummary summary = train::train_language_model(run);
    report(common, summary);
    return summary.ending == train::Ending::interrupted ? train::StopSignals::exit_code() : kDone;
  }

 private:
  // Settings come from the preset, or from the run that is resumed; what the command line says comes on top.
  train::LanguageModelRun make_run() {
    train::LanguageModelRun run{.settings = train::language_model_settings(preset_),
                                .data = data_,
                                .tokenizer = tokenizer_,
                                .folder = out_,
                                .resume = resume_,
                                .overwrite = overwrite_};
    const std::vector<train::Field> fields = train::fields(run.settings);
    if (const std::optional<Json> record = read_run_record(out_, resume_, fields)) {
      if (run.data.empty()) run.data = record->at("data").as_string();
      if (run.tokenizer.empty()) run.tokenizer = record->at("tokenizer").as_string();
    }
    settings_.apply(fields);
    return run;
  }

  void report(const CommonOptions& common, const train::LanguageModelSummary& summary) const {
    if (common.json) {
      Json json = train::to_json(summary);
      json["folder"] = out_;
      fmt::print("{}\n", json.dump(2));
      return;
    }
    const train::Progress& p = summary.progress;
    if (summary.ending == train::Ending::interrupted) {
      fmt::print("stopped at step {}; go on with: multihead train lm --out {} --resume\n", p.step, out_);
      return;
    }
    fmt::print("{} parameters, {} steps, {} tokens in {} ({:.0f} tokens/s)\n", summary.parameters, p.step,
               p.tokens, train::duration_text(p.seconds), summary.tokens_per_second);
    if (summary.validation) {
      const train::TextLoss& v = *summary.validation;
      fmt::print(
          "validation loss {:.4f} -> {:.4f} nats per token, {:.4f} nats per character, {:.4f} bits per "
          "byte\n",
          p.first_loss, v.loss(), v.nats_per_character(), v.bits_per_byte());
    }
    fmt::print("model in {}\n", out_);
  }

  std::string data_, out_, tokenizer_, preset_ = "tiny";
  bool resume_ = false, overwrite_ = false;
  train::LanguageModelSettings shown_;  // lists the fields only
  SettingFlags settings_;
};

}  // namespace

std::unique_ptr<Verb> make_train_lm() { return std::make_unique<TrainLm>(); }

}  // namespace multihead::cli
