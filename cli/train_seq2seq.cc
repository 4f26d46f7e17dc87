// multihead train seq2seq
#include "cli/train_verb.h"
#include "multihead/train/seq2seq_run.h"

namespace multihead::cli {
namespace {

class TrainSeq2Seq : public TrainVerb<train::Seq2SeqRun, train::Seq2SeqSummary> {
 public:
  std::string name() const override { return "train seq2seq"; }
  std::string summary() const override { return "train a translator on sentence pairs"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead train seq2seq --data train.tsv --valid valid.tsv --out model",
             "source TAB target on every line"},
            {"multihead train seq2seq --data train.tsv --valid valid.tsv --out model --resume",
             "continue an interrupted run"},
            {"multihead train seq2seq --data t.tsv --valid v.tsv --out m --preset small --average 4",
             "a larger model, average of its last four checkpoints"}};
  }

  void declare(Flags& flags) override {
    declare_data(flags, "training pairs: source TAB target per line, UTF-8");
    flags.text("valid", "FILE", valid_, "validation pairs; without them there is no evaluation");
    declare_run(flags, train::seq2seq_presets(), "use the tokenizers of this folder (or tokenizer.json)");
  }

 private:
  Settings preset(const std::string& name) const override { return train::seq2seq_settings(name); }
  void complete(train::Seq2SeqRun& run, const Json* record) const override {
    run.valid = valid_.empty() && record != nullptr ? path_of(*record, "valid") : valid_;
  }
  std::vector<std::string> input_files(const train::Seq2SeqRun& run) const override {
    std::vector<std::string> files = TrainVerb::input_files(run);
    if (!run.valid.empty()) files.push_back(run.valid);
    return files;
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

  std::string valid_;
};

}  // namespace

std::unique_ptr<Verb> make_train_seq2seq() { return std::make_unique<TrainSeq2Seq>(); }

}  // namespace multihead::cli
