// multihead train classifier | embedder | mlm
#include "cli/verbs/train_verb.h"
#include "multihead/train/tasks/classifier_run.h"
#include "multihead/train/tasks/embedder_run.h"
#include "multihead/train/tasks/masked_lm_run.h"

namespace multihead::cli {
namespace {

class TrainClassifier : public TrainVerb<train::ClassifierRun, train::ClassifierSummary> {
 public:
  TrainClassifier()
      : TrainVerb(
            "train classifier", "fine-tune an encoder to classify texts",
            {{"multihead train classifier --init bert --data train.tsv --valid valid.tsv --out model",
              "text TAB label on every line; add --patience 3 to stop early"},
             {"multihead train classifier --init bert --data pairs.jsonl --out model --freeze true --lr 1e-3",
              "train only the head; {\"text\": …, \"text_pair\": …, \"label\": …} on every line"},
             {"multihead train classifier --data train.tsv --out model --resume",
              "continue an interrupted run"},
             {"multihead classify model --data texts.txt", "use it"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data,
               "training texts: text [TAB second text] TAB label per line; or .jsonl");
    flags.text("valid", "FILE", run_.valid, "validation texts; without them there is no evaluation");
    declare_tuning(flags);
  }

 private:
  train::ClassifierSettings preset(const std::string&) const override { return {}; }
  Paths paths() override { return {{"data", &run_.data}, {"valid", &run_.valid}}; }
  train::ClassifierSummary train(const train::ClassifierRun& run) const override {
    return train_classifier(run);
  }

  void print(const train::ClassifierSummary& summary) const override {
    const train::Progress& p = summary.progress;
    fmt::print("{} parameters trained, {} texts, {} labels, {} steps in {}\n", summary.parameters,
               summary.texts, summary.labels.size(), p.step, train::duration_text(p.seconds));
    if (!summary.validation) return;
    const train::LabelScore& v = *summary.validation;
    print_validation(summary, "nats per text");
    fmt::print("of all validation texts: loss {:.4f}, accuracy {:.4f}, macro F1 {:.4f}\n", v.loss(),
               v.accuracy, v.macro_f1);
  }
};

class TrainEmbedder : public TrainVerb<train::EmbedderRun, train::EmbedderSummary> {
 public:
  TrainEmbedder()
      : TrainVerb(
            "train embedder", "fine-tune an encoder to embed texts",
            {{"multihead train embedder --init all-MiniLM-L6-v2 --data train.tsv --valid valid.tsv --out "
              "model",
              "query TAB document on every line; the other documents of a batch are negatives"},
             {"multihead train embedder --init bert --data train.tsv --out model --batch 512 --chunk 32",
              "large batches in the memory of small ones (gradient caching)"},
             {"multihead train embedder --data train.tsv --out model --resume",
              "continue an interrupted run"},
             {"multihead embed model --data texts.txt --out vectors.npy", "use it"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data, "training pairs: query TAB document per line");
    flags.text("valid", "FILE", run_.valid, "validation pairs; without them there is no evaluation");
    declare_tuning(flags);
  }

 private:
  train::EmbedderSettings preset(const std::string&) const override { return {}; }
  Paths paths() override { return {{"data", &run_.data}, {"valid", &run_.valid}}; }
  train::EmbedderSummary train(const train::EmbedderRun& run) const override { return train_embedder(run); }

  void print(const train::EmbedderSummary& summary) const override {
    const train::Progress& p = summary.progress;
    fmt::print("{} parameters trained, {} pairs, {} steps in {}\n", summary.parameters, summary.pairs, p.step,
               train::duration_text(p.seconds));
    if (!summary.validation) return;
    const train::RetrievalScore& v = *summary.validation;
    print_validation(summary, "nats per query");
    fmt::print("of all {} validation pairs: loss {:.4f}, recall@1 {:.4f}, recall@10 {:.4f}\n", v.pairs,
               v.loss, v.recall_at_1, v.recall_at_10);
  }
};

class TrainMaskedLm : public TrainVerb<train::MaskedLmRun, train::MaskedLmSummary> {
 public:
  TrainMaskedLm()
      : TrainVerb(
            "train mlm", "train an encoder on a text by masked language modelling",
            {{"multihead train mlm --init bert --data mine.txt --out model",
              "continue pre-training a model on your own texts"},
             {"multihead train mlm --data corpus.txt --out model --preset tiny",
              "train a new encoder and tokenizer"},
             {"multihead train mlm --data mine.txt --out model --resume", "continue an interrupted run"},
             {"multihead fill-mask model --text \"Paris is the [MASK] of France.\"", "use it"}}) {}

  void declare(Flags& flags) override {
    flags.text("data", "FILE", run_.data, "training text, UTF-8");
    declare_run(flags, train::masked_lm_presets(), "use this tokenizer.json (or its folder)");
  }

 private:
  train::MaskedLmSettings preset(const std::string& name) const override {
    return train::masked_lm_settings(name);
  }
  train::MaskedLmSummary train(const train::MaskedLmRun& run) const override { return train_masked_lm(run); }

  void print(const train::MaskedLmSummary& summary) const override {
    const train::Progress& p = summary.progress;
    fmt::print("{} parameters trained, {} steps in {}\n", summary.parameters, p.step,
               train::duration_text(p.seconds));
    if (!summary.validation) return;
    print_validation(summary, "nats per hidden token");
    fmt::print("of all validation text: {:.4f} nats per hidden token, {:.4f} guessed\n",
               summary.validation->loss(), summary.validation->accuracy());
  }
};

}  // namespace

std::unique_ptr<Verb> make_train_mlm() { return std::make_unique<TrainMaskedLm>(); }
std::unique_ptr<Verb> make_train_embedder() { return std::make_unique<TrainEmbedder>(); }
std::unique_ptr<Verb> make_train_classifier() { return std::make_unique<TrainClassifier>(); }

}  // namespace multihead::cli
