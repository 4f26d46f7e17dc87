// multihead train lm
#include "cli/train_verb.h"
#include "multihead/train/language_model_run.h"

namespace multihead::cli {
namespace {

class TrainLm : public TrainVerb<train::LanguageModelRun, train::LanguageModelSummary> {
 public:
  std::string name() const override { return "train lm"; }
  std::string summary() const override { return "train a language model on a text file"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead train lm --data austen.txt --out model --preset tiny",
             "the demo: a few minutes on two cores"},
            {"multihead train lm --data austen.txt --out model --resume", "continue an interrupted run"},
            {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
             "custom sizes, character tokens"}};
  }

  void declare(Flags& flags) override {
    declare_data(flags, "training text, UTF-8");
    declare_run(flags, train::language_model_presets(), "use this tokenizer.json (or its folder)");
  }

 private:
  Settings preset(const std::string& name) const override { return train::language_model_settings(name); }
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

}  // namespace

std::unique_ptr<Verb> make_train_lm() { return std::make_unique<TrainLm>(); }

}  // namespace multihead::cli
