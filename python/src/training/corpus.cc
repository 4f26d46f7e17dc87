// Texts for training, and how close translations are to references.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/bleu.h"
#include "multihead/text/corpus/corpus.h"
#include "python/src/bindings.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

nb::dict bleu_dict(const std::vector<std::string>& hypotheses, const std::vector<std::string>& references) {
  const text::BleuScore b = unlocked([&] { return text::bleu(hypotheses, references); });
  nb::dict result;
  const auto list = [](const auto& values) {
    nb::list items;
    for (const auto value : values) items.append(value);
    return items;
  };
  result["score"] = b.score, result["precisions"] = list(b.precisions);
  result["correct"] = list(b.correct), result["total"] = list(b.total);
  result["brevity_penalty"] = b.brevity_penalty;
  result["hypothesis_words"] = b.hypothesis_words, result["reference_words"] = b.reference_words;
  result["signature"] = text::bleu_signature();
  return result;
}

void bind_scores(nb::module_& m) {
  m.def("bleu", &bleu_dict, "hypotheses"_a, "references"_a,
        "Corpus BLEU with sacrebleu's defaults: a dict with 'score' in [0, 100], 'precisions', "
        "'correct', 'total',\n'brevity_penalty', 'hypothesis_words', 'reference_words', 'signature'.");
  m.def(
      "chrf",
      [](const std::vector<std::string>& hypotheses, const std::vector<std::string>& references) {
        return unlocked([&] { return text::chrf(hypotheses, references); });
      },
      "hypotheses"_a, "references"_a, "Corpus chrF2 in [0, 100] with sacrebleu's defaults.");
  m.def("bleu_signature", &text::bleu_signature, "The signature of bleu(), in sacrebleu's notation.");
  m.def("chrf_signature", &text::chrf_signature, "The signature of chrf(), in sacrebleu's notation.");
  m.def(
      "tokenize_13a", [](const std::string& line) { return text::tokenize_13a(line); }, "line"_a,
      "The tokens that bleu() counts.");
}

void bind_files(nb::module_& m) {
  m.def(
      "read_text",
      [](const Path& path, bool require_utf8) {
        return to_str(unlocked([&] { return text::read_text(path, {require_utf8}); }));
      },
      "path"_a, nb::kw_only(), "require_utf8"_a = true,
      "The text of a file, without a byte order mark. FormatError names the line that is not UTF-8.");
  m.def(
      "read_pairs",
      [](const Path& path) {
        const text::ParallelText pairs = unlocked([&] { return text::read_pairs(path); });
        return nb::make_tuple(pairs.source, pairs.target);
      },
      "path"_a, "(sources, targets) of a two-column file: source TAB target on every line.");
  m.def(
      "split_corpus",
      [](const std::string& text, double validation, int64_t blocks) {
        const text::TextSplit split = unlocked([&] {
          return text::split_corpus(text, text::SplitOptions{validation, blocks});
        });
        nb::list train, held_out;
        for (const std::string_view part : split.train) train.append(to_str(part));
        for (const std::string_view part : split.validation) held_out.append(to_str(part));
        return nb::make_tuple(train, held_out);
      },
      "text"_a, nb::kw_only(), "validation"_a = 0.1, "blocks"_a = 1,
      "(training, validation) texts, lists of contiguous pieces: the end of each of `blocks` equal blocks is "
      "held out.");
}

}  // namespace

void bind_corpus(nb::module_& m) {
  bind_scores(m);
  bind_files(m);
}

}  // namespace multihead::python
