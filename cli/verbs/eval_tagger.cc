#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verbs/eval_encoders.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/token_classifier.h"
#include "multihead/text/corpus/spans.h"
#include "multihead/train/scores.h"

namespace multihead::cli {
namespace {

using text::Span;
using train::LabelFigures;

struct Counts {
  int64_t right = 0, guessed = 0, support = 0;
};

// An entity is right if its place and its label are.
class TaggerScore {
 public:
  void add(const text::SpannedText& truth, const std::vector<Span>& guesses) {
    for (const Span& span : truth.spans) ++counts_[span.label].support;
    for (const Span& span : guesses) {
      Counts& one = counts_[span.label];
      ++one.guessed;
      if (std::ranges::find(truth.spans, span) != truth.spans.end()) ++one.right;
    }
  }
  void report(size_t texts, const CommonOptions& common) const {
    Counts all;
    LabelFigures macro;
    Json rows = Json::array();
    std::string lines;
    const auto row = [&](const std::string& name, const LabelFigures& f) {
      lines += fmt::format("{:<20}{:>11.4f}{:>9.4f}{:>9.4f}{:>10}\n", printable(name), f.precision, f.recall,
                           f.f1, f.support);
    };
    for (const auto& [label, one] : counts_) {
      const LabelFigures f = train::figures_of(one.right, one.guessed, one.support);
      all.right += one.right, all.guessed += one.guessed, all.support += one.support;
      macro.f1 += f.f1 / static_cast<double>(counts_.size());
      row(label, f);
      rows.push_back(train::to_json(label, f));
    }
    const LabelFigures micro = train::figures_of(all.right, all.guessed, all.support);
    row("all", micro);
    if (!common.json) {
      fmt::print(
          "F1        {:.4f} of {} entities\nmacro F1  {:.4f}\nover      {} "
          "texts\n\n{:<20}{:>11}{:>9}{:>9}{:>10}\n{}",
          micro.f1, all.support, macro.f1, texts, "entities", "precision", "recall", "F1", "support", lines);
      return;
    }
    put_json(Json::object({{"precision", micro.precision},
                           {"recall", micro.recall},
                           {"f1", micro.f1},
                           {"macro_f1", macro.f1},
                           {"entities", all.support},
                           {"texts", texts},
                           {"labels", rows}}));
  }

 private:
  std::map<std::string, Counts> counts_;
};

// Entities that stand in the file or were found; the label of the other side is empty.
std::string lines_of(const text::SpannedText& truth, const std::vector<Span>& guesses) {
  std::map<std::pair<size_t, size_t>, std::pair<std::string, std::string>> places;
  for (const Span& span : truth.spans) places[{span.place.begin, span.place.end}].first = span.label;
  for (const Span& span : guesses) places[{span.place.begin, span.place.end}].second = span.label;
  std::string lines;
  for (const auto& [place, labels] : places) {
    lines += concat(truth.line, "\t", cell(labels.first), "\t", cell(labels.second), "\t",
                    cell(truth.text.substr(place.first, place.second - place.first)), "\n");
  }
  return lines;
}

}  // namespace

int eval_tagger(const EncoderTest& test, const CommonOptions& common) {
  const auto classifier = reading([&] { return embed::TokenClassifier::load(test.folder); });
  const std::vector<text::SpannedText> all = reading([&] { return text::read_spans(test.data); });
  std::vector<std::string> texts;
  for (const text::SpannedText& one : all) texts.push_back(one.text);
  TextMeter meter(common.quiet);
  const embed::EntityOptions options = {.aggregation = embed::Aggregation::first,
                                        .words_end_at_spaces = all.front().has_words,
                                        .progress = [&](int64_t done, int64_t total) { meter(done, total); }};
  const auto found = with_weights_of(test.folder, [&] { return classifier.entities(texts, options); });
  TaggerScore score;
  std::string lines = "line\tlabel\tpredicted\tentity\n";
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Span> guesses;
    for (const embed::Entity& entity : found[i]) {
      // Tokens of bytes begin with the space in front of a word, entities of files with the word.
      guesses.push_back({text::without_spaces(all[i].text, entity.place), entity.label});
    }
    score.add(all[i], guesses);
    lines += lines_of(all[i], guesses);
  }
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  score.report(texts.size(), common);
  return kDone;
}

}  // namespace multihead::cli
