// multihead translate
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <sstream>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/translate.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

// Lines are translated in groups, so that a stream of any length needs little memory.
constexpr size_t kGroup = 512;

class Translate : public Verb {
 public:
  Translate()
      : Verb(
            "translate", "translate the lines of stdin with a trained model",
            {{"echo \"In the beginning\" | multihead translate model", "beam search, beam size 4"},
             {"multihead translate model --n-best 3 < lines.txt", "line number TAB score TAB translation"},
             {"multihead translate model --prefix \"And he\" --alternatives --n-best 5 < lines.txt",
              "five continuations of the prefix"},
             {"multihead translate model --weight-dtype int8 < lines.txt", "nearly three times as fast"},
             {"multihead translate model --beam 1 --json < lines.txt", "greedy, one JSON object per line"}}) {
  }

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_, "translate this instead of stdin");
    given_.declare(flags, [this](Flags& flags) { declare_search(flags); });
    flags.integer("seed", seed_, "--sample: random seed");
    flags.integer("batch-tokens", options_.batch_tokens, "source tokens per batch", {.least = 1});
    flags.choice("weight-dtype", weight_dtype_, kernels::weight_dtype_names(),
                 "int8: quantised weights and inputs, faster, a quarter of the memory");
  }

  int run(const CommonOptions& common) override {
    options_.beam.seed = static_cast<uint64_t>(seed_);
    const LoadedTranslator loaded = load_translator_dir(folder_);
    const models::PackedSeq2Seq model(loaded.model, kernels::parse_weight_dtype(weight_dtype_));
    reading([&] { apply(models::load_generation_config(folder_), loaded.model.config(), options_.beam); });
    given_.set_again();
    if (options_.beam.sample) refuse_given("with --sample", {"beam", "patience"});
    if (options_.beam.sample && options_.beam.sampling.temperature == 0)
      refuse_given("at temperature 0", {"top-k", "top-p", "seed"});
    if (!options_.beam.sample) refuse_given("without --sample", {"temperature", "top-k", "top-p", "seed"});
    if (common.json) refuse_given("with --json, which has them", {"scores"});
    suppress_words(loaded);
    beam_search(model, {}, options_.beam);  // reports invalid options before any line is read
    if (!text_.empty()) return translate_group(common, {model, loaded.tokenizers}, {text_}, 1);
    std::vector<std::string> lines;
    std::string line;
    size_t first = 1;
    while (read_line(line)) {
      lines.push_back(line);
      if (lines.size() < kGroup) continue;
      if (const int code = translate_group(common, {model, loaded.tokenizers}, lines, first); code != kDone)
        return code;
      first += lines.size();
      lines.clear();
    }
    if (const int code = translate_group(common, {model, loaded.tokenizers}, lines, first); code != kDone)
      return code;
    if (common.quiet || words_ == 0) return kDone;
    fmt::print(stderr, "{} lines, {:.1f} lines/s, {:.0f} tokens/s\n", first - 1 + lines.size(),
               static_cast<double>(first - 1 + lines.size()) / seconds_,
               static_cast<double>(words_) / seconds_);
    return kDone;
  }

 private:
  void declare_search(Flags& flags) {
    BeamOptions& beam = options_.beam;
    flags.integer("beam", beam.beam_size, "beam size (1: greedy)");
    flags.integer("n-best", beam.num_hypotheses, "translations per line");
    flags.flag("scores", scores_, "print score TAB translation");
    flags.number("length-penalty", beam.length_penalty, "divide scores by length to this power",
                 {.least = std::numeric_limits<double>::lowest()});
    flags.number("patience", beam.patience, "stop after beam x patience finished hypotheses");
    flags.number("repetition-penalty", beam.repetition_penalty, "> 1 penalises repeated tokens");
    flags.integer("no-repeat-ngram", beam.no_repeat_ngram, "forbid repeated N-grams (0: off)");
    flags.integer("min-length", beam.min_length, "minimum length in tokens");
    flags.integer("max-length", beam.max_length, "maximum length in tokens");
    flags.text("prefix", "TEXT", prefix_, "start every translation with this text");
    flags.text("source-language", "CODE", options_.source_language,
               "for models of many languages: the source's token, such as eng_Latn");
    flags.text("target-language", "CODE", options_.target_language, "the same of the translations");
    flags.flag("alternatives", beam.alternatives,
               "the --n-best most probable next tokens after --prefix, each with its best translation");
    flags.text("suppress", "TEXT", suppress_, "forbidden words, separated by spaces");
    flags.flag("sample", beam.sample, "sample --n-best translations instead of searching");
    flags.number("temperature", beam.sampling.temperature, "--sample: softmax temperature");
    flags.integer("top-k", beam.sampling.top_k, "--sample: from the k most probable tokens (0: all)");
    flags.number("top-p", beam.sampling.top_p, "--sample: from the smallest set with this total probability");
  }

  // A word may be spelt with and without a space in front of it.
  void suppress_words(const LoadedTranslator& loaded) {
    std::istringstream words(suppress_);
    for (std::string word; std::getline(words, word, ' ');) {
      if (word.empty()) continue;
      for (const std::string& spelt : {word, " " + word}) {
        options_.beam.suppress.push_back(loaded.tokenizers.target.encode(spelt, {.add_template = false}));
      }
    }
  }

  struct Translator {
    const models::PackedSeq2Seq& model;
    const train::PairTokenizers& tokenizers;
  };

  // The exit code: a signal ends the program when the group has been printed, or, while lines are awaited, at once.
  int translate_group(const CommonOptions& common, const Translator& with,
                      const std::vector<std::string>& lines, size_t first) {
    const train::StopSignals signals;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (is_blank(lines[i])) continue;
      const std::string what = text_.empty() ? concat("line ", first + i) : "--text";
      reading([&] {
        return encode_source(with.model.config(), with.tokenizers.source, lines[i], what,
                             options_.source_language);
      });
    }
    if (!prefix_.empty()) options_.prefixes.assign(lines.size(), prefix_);
    const auto begin = std::chrono::steady_clock::now();
    const auto all = with_weights_of(folder_, [&] {
      return translate(with.model, with.tokenizers.source, with.tokenizers.target, lines, options_);
    });
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (size_t i = 0; i < lines.size(); ++i) {
      words_ += all[i].empty() ? 0 : all[i].front().hypothesis.tokens.size();
      common.json ? print_json(lines[i], all[i]) : print_text(first + i, all[i]);
    }
    flush_output();
    return train::StopSignals::received() != 0 ? train::StopSignals::exit_code() : kDone;
  }

  void print_text(size_t number, const std::vector<Translation>& translations) const {
    for (const Translation& t : translations) {
      if (options_.beam.num_hypotheses > 1) fmt::print("{}\t", number);
      if (scores_ || options_.beam.num_hypotheses > 1) fmt::print("{:.4f}\t", t.hypothesis.score);
      fmt::print("{}\n", one_line(t.text));
    }
  }

  static void print_json(const std::string& source, const std::vector<Translation>& translations) {
    Json list = Json::array();
    for (const Translation& t : translations) {
      list.push_back(Json::object({{"text", valid_utf8(t.text)},
                                   {"score", t.hypothesis.score},
                                   {"log_probability", t.hypothesis.log_probability},
                                   {"tokens", t.hypothesis.tokens.size()}}));
    }
    put_json(Json::object({{"source", valid_utf8(source)}, {"translations", list}}), -1);
  }

  std::string folder_, text_, prefix_, suppress_, weight_dtype_ = "f32";
  bool scores_ = false;
  int64_t seed_ = 0;
  TranslateOptions options_;
  GivenFlags given_;
  double seconds_ = 0;
  size_t words_ = 0;
};

}  // namespace

std::unique_ptr<Verb> make_translate() { return std::make_unique<Translate>(); }

}  // namespace multihead::cli
