#include "cli/eval_pairs.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/model_dir.h"
#include "cli/output.h"
#include "multihead/core/files.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/translate.h"
#include "multihead/text/bleu.h"
#include "multihead/text/corpus.h"

namespace multihead::cli {
namespace {

struct Scores {
  train::PairLoss loss;
  std::vector<std::string> translations;  // empty unless requested
  double seconds = 0;
};

Scores measure(const LoadedTranslator& loaded, const text::ParallelText& text,
               const EvalPairsOptions& options) {
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

void print(const Scores& scores, const std::vector<std::string>& references,
           const EvalPairsOptions& options) {
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
                const EvalPairsOptions& options) {
  Json json = Json::object({{"loss", number_or_null(scores.loss.loss())},
                            {"perplexity", number_or_null(std::exp(scores.loss.loss()))},
                            {"tokens", scores.loss.tokens},
                            {"pairs", static_cast<int64_t>(references.size())}});
  if (options.bleu) {
    json["bleu"] = text::bleu(scores.translations, references).score;
    json["bleu_signature"] = text::bleu_signature();
  }
  if (options.chrf) {
    json["chrf"] = text::chrf(scores.translations, references);
    json["chrf_signature"] = text::chrf_signature();
  }
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

int eval_pairs(const CommonOptions& common, const std::string& folder, const std::string& data,
               EvalPairsOptions& options) {
  const LoadedTranslator loaded = load_translator_dir(folder);
  reading([&] { apply(models::load_generation_config(folder), loaded.model.config(), options.search); });
  options.given.set_again();
  text::ParallelText text = reading([&] { return text::read_pairs(data); });
  if (options.pairs > 0 && static_cast<size_t>(options.pairs) < text.source.size()) {
    text.source.resize(static_cast<size_t>(options.pairs));
    text.target.resize(static_cast<size_t>(options.pairs));
  }
  const Scores scores = with_weights_of(folder, [&] { return measure(loaded, text, options); });
  check_number(folder, "the loss", scores.loss.loss());
  if (!options.output.empty()) {
    std::string lines;
    for (const std::string& line : scores.translations) lines += line + "\n";
    write_file_atomically(options.output, lines);
  }
  common.json ? print_json(scores, text.target, options) : print(scores, text.target, options);
  return kDone;
}

}  // namespace multihead::cli
