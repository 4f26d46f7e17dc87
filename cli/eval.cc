// multihead eval
#include <fmt/format.h>

#include "cli/eval_pairs.h"
#include "cli/model_dir.h"
#include "multihead/text/corpus.h"
#include "multihead/train/evaluate.h"

namespace multihead::cli {
namespace {

class Eval : public Verb {
 public:
  std::string name() const override { return "eval"; }
  std::string summary() const override { return "evaluate a model: loss, perplexity, BLEU, chrF"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead eval model --data austen.txt --last 0.1",
             "loss, perplexity and bits per byte of the last tenth"},
            {"multihead eval model --data other.txt --json", "for programs"},
            {"multihead eval translator --data test.tsv --bleu --chrf", "translate and score"}};
  }

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("data", "FILE", data_, "evaluation text (required)");
    flags.number("last", last_, "evaluate only the last fraction of the text",
                 {.least = 0, .most = 1, .open = true});
    flags.integer("context", options_.context, "tokens per window (0: the model's context)");
    flags.integer("batch", options_.batch, "windows per batch", {.least = 1});
    flags.integer("windows", options_.windows, "number of windows, evenly spaced over the text (0: all)");
    flags.flag("bleu", pairs_.bleu, "translator: compute BLEU (data: source TAB target)");
    flags.flag("chrf", pairs_.chrf, "translator: compute chrF2");
    pairs_.given.declare(flags, [this](Flags& own) {
      own.integer("beam", pairs_.search.beam_size, "translator: beam size", {.least = 1});
    });
    flags.integer("pairs", pairs_.pairs, "translator: evaluate the first N pairs (0: all)");
    flags.choice("weight-dtype", pairs_.weight_dtype, {"f32", "int8"},
                 "translator: weights used to translate; the loss always uses f32");
    flags.text("save-translations", "FILE", pairs_.output,
               "translator: write the translations, one per line");
  }

  int run(const CommonOptions& common) override {
    if (data_.empty()) throw UsageError("--data FILE is required; see multihead eval --help");
    if (reading([&] { return models::is_seq2seq_folder(folder_); })) {
      return eval_pairs(common, folder_, data_, pairs_);
    }
    if (pairs_.bleu || pairs_.chrf) {
      throw UsageError(concat(folder_, " is a language model; --bleu and --chrf are for translators"));
    }
    const LoadedModel loaded = load_model_dir(folder_);
    const int64_t context = loaded.model.config().context;
    if (options_.context > context) {
      throw UsageError(
          concat("--context must be in [1, ", context, "], the model's, got ", options_.context));
    }
    const std::string text = reading([&] { return text::read_text(data_); });
    const std::vector<int32_t> tokens = reading([&] { return loaded.tokenizer.encode(part(text)); });
    const train::TextLoss result =
        train::evaluate(loaded.model, std::span<const int32_t>(tokens), options_, &loaded.tokenizer);
    check_number(folder_, "the loss", result.loss());
    if (common.json) {
      fmt::print("{}\n", Json::object({{"loss", number_or_null(result.loss())},
                                       {"perplexity", number_or_null(result.perplexity())},
                                       {"nats_per_character", number_or_null(result.nats_per_character())},
                                       {"bits_per_byte", number_or_null(result.bits_per_byte())},
                                       {"tokens", result.tokens},
                                       {"characters", result.characters},
                                       {"bytes", result.bytes}})
                             .dump(2));
      return kDone;
    }
    fmt::print("loss                {:.4f} nats per token\nperplexity          {:.3f}\n", result.loss(),
               result.perplexity());
    fmt::print("nats per character  {:.4f}\nbits per byte       {:.4f}\n", result.nats_per_character(),
               result.bits_per_byte());
    fmt::print("predicted           {} tokens, {} characters, {} bytes\n", result.tokens, result.characters,
               result.bytes);
    return kDone;
  }

 private:
  std::string_view part(const std::string& text) const {
    if (last_ == 1) return text;
    return text::split_corpus(text, {.validation = last_}).validation.front();
  }

  std::string folder_, data_;
  double last_ = 1;
  train::EvaluateOptions options_;
  EvalPairsOptions pairs_;
};

}  // namespace

std::unique_ptr<Verb> make_eval() { return std::make_unique<Eval>(); }

}  // namespace multihead::cli
