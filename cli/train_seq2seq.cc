// multihead train seq2seq
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "cli/setting_flags.h"
#include "multihead/io/files.h"
#include "multihead/train/progress.h"
#include "multihead/train/seq2seq_run.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

class TrainSeq2Seq : public Verb {
 public:
  std::string name() const override { return "train seq2seq"; }
  std::string summary() const override { return "train a translator on sentence pairs"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead train seq2seq --data train.tsv --valid valid.tsv --out model",
             "source TAB target on every line"},
            {"multihead train seq2seq --data train.tsv --valid valid.tsv --out model --resume",
             "go on where a killed run stopped"},
            {"multihead train seq2seq --data t.tsv --valid v.tsv --out m --preset small --average 4",
             "a larger model, the mean of its last four checkpoints"}};
  }

  void declare(Flags& flags) override {
    flags.text("data", "FILE", data_, "training pairs: source TAB target per line, UTF-8");
    flags.text("valid", "FILE", valid_, "validation pairs; without them nothing is measured");
    flags.text("out", "DIR", out_, "folder for model, checkpoints and metrics (required)");
    flags.choice("preset", preset_, train::seq2seq_presets(), "settings to start from");
    flags.text("tokenizer-file", "PATH", tokenizer_, "use the tokenizers of this folder (or tokenizer.json)");
    flags.flag("resume", resume_, "go on from the newest checkpoint in --out, if there is one");
    flags.flag("overwrite", overwrite_, "replace an earlier run in --out");
    settings_.declare(flags, train::fields(shown_));
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out DIR is required; see multihead train seq2seq --help");
    train::Seq2SeqRun run = make_run();
    if (run.data.empty()) throw UsageError("--data FILE is required; see multihead train seq2seq --help");
    train::check(run.settings);
    reading([&] { return io::FileReader(run.data).size(); });
    const train::StopSignals signals;
    run.should_stop = [] { return train::StopSignals::received() != 0; };
    train::ProgressPrinter progress(std::cerr,
                                    {.terminal = isatty(STDERR_FILENO) == 1, .quiet = common.quiet});
    run.observers = {&progress};
    const train::Seq2SeqSummary summary = train::train_seq2seq(run);
    report(common, summary);
    return summary.ending == train::Ending::interrupted ? train::StopSignals::exit_code() : kDone;
  }

 private:
  // Settings come from the preset, or from the run that is resumed; what the command line says comes on top.
  train::Seq2SeqRun make_run() const {
    train::Seq2SeqRun run{.settings = train::seq2seq_settings(preset_),
                          .data = data_,
                          .valid = valid_,
                          .tokenizer = tokenizer_,
                          .folder = out_,
                          .resume = resume_,
                          .overwrite = overwrite_};
    const std::vector<train::Field> fields = train::fields(run.settings);
    if (const std::optional<Json> record = read_run_record(out_, resume_, fields)) {
      if (run.data.empty()) run.data = record->at("data").as_string();
      if (run.valid.empty()) run.valid = record->at("valid").as_string();
      if (run.tokenizer.empty()) run.tokenizer = record->at("tokenizer").as_string();
    }
    settings_.apply(fields);
    return run;
  }

  void report(const CommonOptions& common, const train::Seq2SeqSummary& summary) const {
    if (common.json) {
      Json json = train::to_json(summary);
      json["folder"] = out_;
      fmt::print("{}\n", json.dump(2));
      return;
    }
    const train::Progress& p = summary.progress;
    if (summary.ending == train::Ending::interrupted) {
      fmt::print("stopped at step {}; go on with: multihead train seq2seq --out {} --resume\n", p.step, out_);
      return;
    }
    fmt::print("{} parameters, {} pairs, {} steps, {} target tokens in {} ({:.0f} tokens/s)\n",
               summary.parameters, summary.pairs, p.step, p.tokens, train::duration_text(p.seconds),
               summary.tokens_per_second);
    if (summary.validation) {
      fmt::print("validation loss {:.4f} -> {:.4f} nats per token\n", p.first_loss,
                 summary.validation->loss());
    }
    fmt::print("model in {}\n", out_);
  }

  std::string data_, valid_, out_, tokenizer_, preset_ = "tiny";
  bool resume_ = false, overwrite_ = false;
  train::Seq2SeqSettings shown_;  // lists the fields only
  SettingFlags settings_;
};

}  // namespace

std::unique_ptr<Verb> make_train_seq2seq() { return std::make_unique<TrainSeq2Seq>(); }

}  // namespace multihead::cli
