// multihead train lm | seq2seq
#include "cli/verbs/train_verb.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/seq2seq_run.h"

namespace multihead::cli {
namespace {

class TrainLm : public TrainVerb<train::LanguageModelRun, train::LanguageModelSummary> {
 public:
  TrainLm()
      : TrainVerb(
            "train lm", "train a language model on a text file",
            {{"multihead train lm --data austen.txt --out model --preset tiny",
              "the demo: a few minutes on two cores"},
             {"multihead train lm --data austen.txt --out model --resume", "continue an interrupted run"},
             {"mpirun -n 4 multihead train lm --data austen.txt --out model",
              "on four processes or machines; same weights as on one"},
             {"mpirun -n 4 multihead train lm --data t.txt --out m --context 65536 --context-shards 4",
              "each process holds a quarter of every sequence"},
             {"multihead train lm --data mine.txt --out tuned --init model --lr 1e-4", "fine-tune a model"},
             {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
              "custom sizes, character-level tokens"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data,
               "training text, UTF-8; or tokens, or a list of token files (tokenizer encode, list)");
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
    print_validation(summary, "nats per token");
    fmt::print(
        "of all validation text: {:.4f} nats per token, {:.4f} nats per character, {:.4f} bits per byte\n",
        v.loss(), v.nats_per_character(), v.bits_per_byte());
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
                    "a larger model, averaging its last four checkpoints"}}) {}

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
    print_validation(summary, "nats per token");
    fmt::print("of all validation pairs: {:.4f} nats per token\n", summary.validation->loss());
  }
};

}  // namespace

std::unique_ptr<Verb> make_train_lm() { return std::make_unique<TrainLm>(); }
std::unique_ptr<Verb> make_train_seq2seq() { return std::make_unique<TrainSeq2Seq>(); }

}  // namespace multihead::cli
