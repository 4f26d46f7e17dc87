#include "cli/verbs/eval_classifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/text/corpus/labelled.h"
#include "multihead/train/tasks/classifier_run.h"

namespace multihead::cli {
namespace {

std::vector<int64_t> label_ids(const embed::TextClassifier& classifier, const text::LabelledTexts& texts,
                               const std::string& data) {
  std::map<std::string, int64_t> ids;
  for (int64_t i = 0; i < classifier.num_labels(); ++i) ids[classifier.label(i)] = i;
  std::vector<int64_t> found;
  for (size_t i = 0; i < texts.labels.size(); ++i) {
    const auto id = ids.find(texts.labels[i]);
    if (id == ids.end()) {
      std::string known;
      for (const auto& [name, number] : ids) known += (known.empty() ? "" : ", ") + quote(name, 40);
      throw InputError(concat(data, ": line ", texts.lines[i], ": the model has no label ",
                              quote(texts.labels[i], 80), "; its labels are ", known));
    }
    found.push_back(id->second);
  }
  return found;
}

train::LabelScore score_of(const Tensor& logits, const std::vector<int64_t>& labels) {
  const int64_t width = logits.size(1);
  std::vector<int64_t> guesses;
  double nats = 0;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const float* row = logits.data<float>() + i * width;
    const int64_t best = std::max_element(row, row + width) - row;
    double sum = 0;
    for (int64_t k = 0; k < width; ++k) sum += std::exp(static_cast<double>(row[k]) - row[best]);
    nats += std::log(sum) + row[best] - row[labels[static_cast<size_t>(i)]];
    guesses.push_back(best);
  }
  train::LabelScore score = train::score_labels(guesses, labels, width);
  score.nats = nats;
  return score;
}

}  // namespace

int eval_classifier(const std::string& folder, const std::string& data, text::TableFormat format,
                    const CommonOptions& common) {
  const auto classifier = reading([&] { return embed::TextClassifier::load(folder); });
  const models::ProblemType type = classifier.encoder().config().problem_type;
  if (type != models::ProblemType::unstated && type != models::ProblemType::single_label) {
    throw InputError(concat(folder, ": its problem_type is ", word_of(type),
                            "; texts with one label each evaluate single_label"));
  }
  const text::LabelledTexts texts = reading([&] { return text::read_labelled(data, format); });
  const std::vector<int64_t> labels = label_ids(classifier, texts, data);
  TextMeter meter(common.quiet);
  const embed::ClassifyOptions options = {
      .progress = [&](int64_t done, int64_t total) { meter(done, total); }};
  std::vector<embed::TextPair> pairs;
  for (size_t i = 0; i < texts.seconds.size(); ++i) pairs.emplace_back(texts.texts[i], texts.seconds[i]);
  const Tensor logits =
      pairs.empty() ? classifier.logits(texts.texts, options) : classifier.logits(pairs, options);
  const train::LabelScore score = score_of(logits, labels);
  check_number(folder, "the loss", score.loss());
  if (common.json) {
    put_json(to_json(score));
  } else {
    fmt::print("loss      {:.4f} nats per text\naccuracy  {:.4f}\nmacro F1  {:.4f}\nover      {} texts\n",
               score.loss(), score.accuracy, score.macro_f1, score.texts);
  }
  return kDone;
}

}  // namespace multihead::cli
