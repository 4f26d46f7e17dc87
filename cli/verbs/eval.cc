// multihead eval
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verbs/eval_encoders.h"
#include "multihead/core/files.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/generate.h"
#include "multihead/generate/translate.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/text/bleu.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/evaluate.h"

namespace multihead::cli {
namespace {

// The options for a translator.
struct PairOptions {
  bool bleu = false, chrf = false;
  BeamOptions search;  // the model folder's defaults, overridden by flags
  std::string weight_dtype = "f32";
  int64_t pairs = 0;   // from the start; 0: all
  std::string output;  // a file for the translations; empty: none
};

struct Scores {
  train::PairLoss loss;
  std::vector<std::string> translations;  // empty unless requested
  double seconds = 0;
};

Scores measure(const LoadedTranslator& loaded, const text::ParallelText& text, const PairOptions& options) {
  Scores scores;
  const models::Seq2SeqConfig& config = loaded.model.config();
  std::vector<train::TokenPair> pairs = reading([&] {
    return train::encode_pairs(
        text, loaded.tokenizers.source, loaded.tokenizers.target,
        {.pad = static_cast<int32_t>(config.pad_id), .eos = static_cast<int32_t>(config.eos_id)});
  });
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].longest() > config.max_positions) {
      throw InputError(concat("line ", i + 1, " has ", pairs[i].longest(),
                              " tokens on one side, the model takes ", config.max_positions));
    }
  }
  scores.loss = train::evaluate(loaded.model, pairs);
  if (!options.bleu && !options.chrf && options.output.empty()) return scores;
  TranslateOptions translate_options;
  translate_options.beam = options.search;
  translate_options.weight_dtype = kernels::parse_weight_dtype(options.weight_dtype);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& best : translate(loaded.model, loaded.tokenizers.source, loaded.tokenizers.target,
                                    text.source, translate_options)) {
    scores.translations.push_back(best.empty() ? "" : one_line(best.front().text));
  }
  scores.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return scores;
}

void print(const Scores& scores, const std::vector<std::string>& references, const PairOptions& options) {
  fmt::print("loss         {:.4f} nats per target token, perplexity {:.3f}\n", scores.loss.loss(),
             std::exp(scores.loss.loss()));
  if (options.bleu) {
    const text::BleuScore s = text::bleu(scores.translations, references);
    fmt::print("BLEU         {:.2f}  {:.1f}/{:.1f}/{:.1f}/{:.1f}  brevity penalty {:.3f}  {}\n", s.score,
               s.precisions[0], s.precisions[1], s.precisions[2], s.precisions[3], s.brevity_penalty,
               text::bleu_signature());
  }
  if (options.chrf) {
    fmt::print("chrF2        {:.2f}  {}\n", text::chrf(scores.translations, references),
               text::chrf_signature());
  }
  if (!scores.translations.empty()) {
    const auto count = static_cast<double>(scores.translations.size());
    fmt::print("translated   {} lines, {:.1f} lines/s at beam {}\n", scores.translations.size(),
               count / scores.seconds, options.search.beam_size);
  }
}

void print_json(const Scores& scores, const std::vector<std::string>& references,
                const PairOptions& options) {
  Json json = Json::object({{"loss", number_or_null(scores.loss.loss())},
                            {"perplexity", number_or_null(std::exp(scores.loss.loss()))},
                            {"tokens", scores.loss.tokens},
                            {"pairs", references.size()}});
  if (options.bleu) {
    json["bleu"] = text::bleu(scores.translations, references).score;
    json["bleu_signature"] = text::bleu_signature();
  }
  if (options.chrf) {
    json["chrf"] = text::chrf(scores.translations, references);
    json["chrf_signature"] = text::chrf_signature();
  }
  put_json(json);
}

class Eval : public Verb {
 public:
  Eval()
      : Verb("eval", "evaluate a model: perplexity, BLEU, accuracy, F1, recall, correlation",
             {{"multihead eval classifier --data test.tsv --predictions out.tsv --page report.html",
               "accuracy, precision, recall and F1 of each label, confusion matrix (text TAB label)"},
              {"multihead eval embedder --data pairs.tsv",
               "recall, MRR and NDCG (query TAB document), Spearman (a third column, the score)"},
              {"multihead eval reranker --data judged.tsv", "the same (query TAB document TAB relevance)"},
              {"multihead eval tagger --data test.conll", "F1 of entities (word TAB tag, or JSON Lines)"},
              {"multihead eval vit --data images", "images in folders called by their labels"},
              {"multihead eval model --data austen.txt --last 0.1",
               "loss, perplexity and bits per byte of the last tenth"},
              {"multihead eval model --data other.txt --json", "for programs"},
              {"multihead eval translator --data test.tsv --bleu --chrf", "translate and score"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("data", "FILE", data_,
               "text, a table, tagged words, or a folder of images, by the kind of model (required)");
    declare_format(flags, format_);
    flags.number("last", last_, "evaluate only the last fraction of the text",
                 {.least = 0, .most = 1, .open = true});
    flags.integer("context", options_.context, "tokens per window (0: the model's context)");
    flags.integer("stride", options_.stride,
                  "tokens between windows; less than --context: they overlap, each token is predicted once "
                  "from at least context - stride before it (0: no overlap)");
    flags.integer("batch", options_.batch, "windows per batch", {.least = 1});
    flags.integer("windows", options_.windows, "number of windows, evenly spaced over the text (0: all)");
    declare_weights(flags, weights_);
    flags.flag("bleu", pairs_.bleu, "translator: compute BLEU (data: source TAB target)");
    flags.flag("chrf", pairs_.chrf, "translator: compute chrF2");
    given_.declare(flags, [this](Flags& own) {
      own.integer("beam", pairs_.search.beam_size, "translator: beam size", {.least = 1});
    });
    flags.integer("pairs", pairs_.pairs, "translator: evaluate the first N pairs (0: all)");
    flags.choice("weight-dtype", pairs_.weight_dtype, kernels::weight_dtype_names(),
                 "translator: weights used to translate; the loss always uses f32");
    flags.output("logprobs", "FILE", logprobs_,
                 "language model: write a line for each token: id, log-probability (- at a window's "
                 "beginning), the token as JSON");
    flags.output("predictions", "FILE", test_.predictions,
                 "encoder: write a TSV file of what is predicted beside what is true");
    flags.output("page", "FILE", test_.page, "classifier: write the report as a page of HTML");
    flags.output("save-translations", "FILE", pairs_.output,
                 "translator: write the translations, one per line");
  }

  int run(const CommonOptions& common) override {
    if (data_.empty()) throw UsageError("--data FILE is required; see multihead eval --help");
    if (reading([&] { return models::is_seq2seq_folder(folder_); })) return run_pairs(common);
    if (reading([&] { return models::is_image_folder(folder_); })) {
      use_only("a classifier of images", {"data", "predictions", "page"});
      return eval_images(encoder_test(), common);
    }
    if (reading([&] { return models::is_encoder_folder(folder_); })) return run_encoder(common);
    use_only("a language model",
             {"data", "last", "context", "stride", "batch", "windows", "weights", "logprobs"});
    if (!logprobs_.empty())
      refuse_given("with --logprobs, whose file has every token", {"windows", "stride"});
    const LoadedModel loaded = load_model_dir(folder_, weights_);
    const int64_t context = loaded.model.config().context;
    if (options_.context > context) {
      throw UsageError(
          concat("--context must be in [1, ", context, "], the model's, got ", options_.context));
    }
    const int64_t window = options_.context > 0 ? options_.context : context;
    if (options_.stride > window) {
      throw UsageError(
          concat("--stride must be in [1, ", window, "], the tokens of a window, got ", options_.stride));
    }
    const std::string text = reading([&] { return text::read_corpus(data_); });
    const std::vector<int32_t> tokens = reading([&] { return loaded.tokenizer.encode(part(text)); });
    const train::TextLoss result =
        train::evaluate(loaded.model, std::span<const int32_t>(tokens), options_, &loaded.tokenizer);
    check_number(folder_, "the loss", result.loss());
    if (!logprobs_.empty()) write_logprobs(loaded, tokens, window);
    if (common.json) {
      Json json = to_json(result);
      json["characters"] = result.characters;
      put_json(json);
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
  EncoderTest encoder_test() const { return {folder_, data_, format_, test_.predictions, test_.page}; }

  int run_encoder(const CommonOptions& common) const {
    using enum models::EncoderHead;
    const auto head = reading([&] { return models::encoder_head(folder_); });
    if (embed::is_text_classifier(folder_)) {
      use_only("a classifier", {"data", "format", "predictions", "page"});
      return eval_classifier(encoder_test(), common);
    }
    if (head == tokens) {
      use_only("a tagger", {"data", "predictions"});
      return eval_tagger(encoder_test(), common);
    }
    use_only("an embedder", {"data", "format", "predictions"});
    return eval_embedder(encoder_test(), common);
  }

  int run_pairs(const CommonOptions& common) {
    use_only("a translator",
             {"data", "format", "bleu", "chrf", "beam", "pairs", "weight-dtype", "save-translations"});
    if (!pairs_.bleu && !pairs_.chrf && pairs_.output.empty())
      refuse_given("without --bleu, --chrf or --save-translations", {"beam", "weight-dtype"});
    const LoadedTranslator loaded = load_translator_dir(folder_);
    reading([&] { apply(models::load_generation_config(folder_), loaded.model.config(), pairs_.search); });
    given_.set_again();
    text::ParallelText text = reading([&] { return text::read_pairs(data_, format_); });
    if (pairs_.pairs > 0 && static_cast<size_t>(pairs_.pairs) < text.source.size()) {
      text.source.resize(static_cast<size_t>(pairs_.pairs));
      text.target.resize(static_cast<size_t>(pairs_.pairs));
    }
    const Scores scores = with_weights_of(folder_, [&] { return measure(loaded, text, pairs_); });
    check_number(folder_, "the loss", scores.loss.loss());
    if (!pairs_.output.empty()) {
      std::string lines;
      for (const std::string& line : scores.translations) lines += line + "\n";
      write_file_atomically(pairs_.output, lines);
    }
    common.json ? print_json(scores, text.target, pairs_) : print(scores, text.target, pairs_);
    return kDone;
  }

  // By windows that do not overlap: each token has its log-probability by those of its window before it.
  void write_logprobs(const LoadedModel& loaded, const std::vector<int32_t>& tokens, int64_t window) const {
    std::string lines;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(window)) {
      const size_t end = std::min(tokens.size(), begin + static_cast<size_t>(window));
      const std::vector<int32_t> part(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(end));
      const auto all = with_weights_of(folder_, [&] { return prompt_logprobs(loaded.model, {part}); });
      for (size_t i = 0; i < part.size(); ++i) {
        const std::string text = loaded.tokenizer.decode(std::span(&part[i], 1), {.continued = true});
        const std::string number = i == 0 ? "-" : Json(all[0][i - 1].chosen.logprob).dump();
        lines += concat(part[i], "\t", number, "\t", Json(valid_utf8(text)).dump(), "\n");
      }
    }
    write_file_atomically(logprobs_, lines);
  }

  std::string_view part(const std::string& text) const {
    if (last_ == 1) return text;
    return text::split_corpus(text, {.validation = last_}).validation.front();
  }

  std::string folder_, data_, logprobs_, weights_ = "stored";
  double last_ = 1;
  text::TableFormat format_ = text::TableFormat::by_name;
  train::EvaluateOptions options_;
  PairOptions pairs_;
  EncoderTest test_;
  GivenFlags given_;
};

}  // namespace

std::unique_ptr<Verb> make_eval() { return std::make_unique<Eval>(); }

}  // namespace multihead::cli
