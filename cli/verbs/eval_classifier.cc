#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/label_report.h"
#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verbs/eval_encoders.h"
#include "multihead/core/files.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/image_classifier.h"
#include "multihead/embed/images/labelled_files.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/ops/shape.h"
#include "multihead/text/corpus/labelled.h"

namespace multihead::cli {
namespace {

// The rows that are classified: the label of each, its place for messages, and how the predictions show it.
struct LabelledInputs {
  std::string model;  // its folder
  std::vector<std::string> labels, places, shown;
  const char* columns;  // of `shown`
  const char* unit;
};

template <class Classifier>
std::vector<std::string> names_of(const Classifier& classifier) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < classifier.num_labels(); ++i) names.push_back(classifier.label(i));
  return names;
}

using LabelIds = std::map<std::string, int64_t>;

int64_t label_id(const LabelIds& ids, const std::string& label, const std::string& place) {
  const auto id = ids.find(label);
  if (id != ids.end()) return id->second;
  std::string known;
  for (const auto& [name, number] : ids) known += (known.empty() ? "" : ", ") + quote(name, 40);
  throw InputError(concat(place, ": the model has no label ", quote(label, 80), "; its labels are ", known));
}

std::vector<int64_t> label_ids(const std::vector<std::string>& names, const LabelledInputs& inputs) {
  const LabelIds ids = reading([&] { return text::label_ids(names, inputs.model); });
  std::vector<int64_t> found;
  for (size_t i = 0; i < inputs.labels.size(); ++i)
    found.push_back(label_id(ids, inputs.labels[i], inputs.places[i]));
  return found;
}

// For each text and label whether it holds.
std::vector<uint8_t> label_sets(const std::vector<std::string>& names, const LabelledInputs& inputs) {
  const LabelIds ids = reading([&] { return text::label_ids(names, inputs.model); });
  std::vector<uint8_t> truth(inputs.labels.size() * names.size(), 0);
  for (size_t i = 0; i < inputs.labels.size(); ++i) {
    const std::string& place = inputs.places[i];
    for (const std::string& label : reading([&] { return text::labels_in(inputs.labels[i], place); }))
      truth[i * names.size() + static_cast<size_t>(label_id(ids, label, place))] = 1;
  }
  return truth;
}

double nats_of(const Tensor& logits, const std::vector<int64_t>& labels) {
  const int64_t width = logits.size(1);
  double nats = 0;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const float* row = logits.data<float>() + i * width;
    const float best = *std::max_element(row, row + width);
    double sum = 0;
    for (int64_t k = 0; k < width; ++k) sum += std::exp(static_cast<double>(row[k]) - best);
    nats += std::log(sum) + best - row[labels[static_cast<size_t>(i)]];
  }
  return nats;
}

// Loss, report, predictions and page of a classifier of single labels.
template <class Classifier>
void report_on(const Classifier& classifier, const Tensor& logits, const LabelledInputs& inputs,
               const EncoderTest& test, const CommonOptions& common) {
  const std::vector<std::string> names = names_of(classifier);
  const std::vector<int64_t> labels = label_ids(names, inputs);
  const double loss = nats_of(logits, labels) / static_cast<double>(labels.size());
  check_number(test.folder, "the loss", loss);
  const Tensor scores = classifier.scores(logits);
  std::vector<int64_t> guesses;
  std::string lines = concat("label\tpredicted\tscore\t", inputs.columns, "\n");
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* row = scores.data<float>() + i * names.size();
    const auto best = static_cast<size_t>(std::max_element(row, row + names.size()) - row);
    guesses.push_back(static_cast<int64_t>(best));
    lines += fmt::format("{}\t{}\t{:.6f}\t{}\n", cell(inputs.labels[i]), cell(names[best]), row[best],
                         inputs.shown[i]);
  }
  const train::LabelReport report = train::report_labels(guesses, labels, std::ssize(names));
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  if (!test.page.empty()) {
    write_file_atomically(test.page, to_html(report, names, concat(test.folder, " on ", test.data)));
  }
  if (common.json) {
    Json json = to_json(report, names);
    json["loss"] = number_or_null(loss);
    json[concat(inputs.unit, "s").c_str()] = labels.size();
    put_json(json);
    return;
  }
  fmt::print("loss      {:.4f} nats per {}\naccuracy  {:.4f}\nmacro F1  {:.4f}\nover      {} {}s\n\n{}", loss,
             inputs.unit, report.accuracy, report.macro.f1, labels.size(), inputs.unit,
             to_text(report, names));
}

// The labels of each text, and those whose logit is above 0.
void report_label_sets(const embed::TextClassifier& classifier, const Tensor& logits,
                       const LabelledInputs& inputs, const EncoderTest& test, const CommonOptions& common) {
  if (!test.page.empty()) throw UsageError("--page has no effect on texts with several labels");
  const std::vector<std::string> names = names_of(classifier);
  const size_t width = names.size();
  const std::vector<uint8_t> truth = label_sets(names, inputs);
  std::vector<uint8_t> guesses;
  double loss = 0;
  std::string lines = concat("labels\tpredicted\t", inputs.columns, "\n");
  for (size_t i = 0; i < inputs.labels.size(); ++i) {
    std::vector<Json> predicted;
    for (size_t k = 0; k < width; ++k) {
      const double x = logits.data<float>()[i * width + k];
      loss += std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) - x * truth[i * width + k];
      guesses.push_back(x > 0 ? 1 : 0);
      if (x > 0) predicted.emplace_back(names[k]);
    }
    lines += fmt::format("{}\t{}\t{}\n", cell(inputs.labels[i]), Json(predicted).dump(), inputs.shown[i]);
  }
  loss /= static_cast<double>(truth.size());
  check_number(test.folder, "the loss", loss);
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  const train::LabelSetReport report = train::report_label_sets(guesses, truth, std::ssize(names));
  if (common.json) {
    Json json = to_json(report, names);
    json["loss"] = number_or_null(loss);
    json["texts"] = inputs.labels.size();
    put_json(json);
    return;
  }
  fmt::print(
      "loss      {:.4f} nats per text and label\nmicro F1  {:.4f}\nmacro F1  {:.4f}\naccuracy  {:.4f}\n"
      "over      {} texts\n\n{}",
      loss, report.micro.f1, report.macro.f1, report.accuracy, inputs.labels.size(), to_text(report, names));
}

// A text, or a query and its document, with the number that it should have and the one it got.
struct Judged {
  std::string text, second;
  double truth, score;
};

// A query and a document that several rows have count once, with the largest of their numbers, as in training.
std::vector<Judged> without_repeats(const std::vector<Judged>& rows) {
  std::vector<Judged> kept;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const Judged& row : rows) {
    const auto [place, is_new] = places.emplace(std::pair(row.text, row.second), kept.size());
    if (is_new) kept.push_back(row);
    double& truth = kept[place->second].truth;
    truth = std::max(truth, row.truth);
  }
  return kept;
}

// Documents of one query are ranked; all scores are compared with the labels.
void report_ranking(const std::vector<Judged>& judged, const CommonOptions& common) {
  std::map<std::string_view, std::vector<size_t>> groups;
  std::vector<double> truth, all;
  for (const Judged& row : judged) {
    if (!row.second.empty()) groups[row.text].push_back(all.size());
    truth.push_back(row.truth), all.push_back(row.score);
  }
  train::RankingScore ranking;
  for (const auto& [query, rows] : groups) {
    std::vector<float> own;
    std::vector<double> gains;
    for (const size_t row : rows) own.push_back(static_cast<float>(all[row])), gains.push_back(truth[row]);
    if (rows.size() > 1) ranking.add(own, gains);
  }
  const double plain = train::pearson(all, truth), ranks = train::spearman(all, truth),
               error = train::mean_squared_error(all, truth);
  if (common.json) {
    Json json = ranking.queries() > 0 ? to_json(ranking) : Json::object();
    json["pairs"] = truth.size();
    json["pearson"] = number_or_null(plain);
    json["spearman"] = number_or_null(ranks);
    json["mean_squared_error"] = number_or_null(error);
    put_json(json);
    return;
  }
  fmt::print("Spearman   {:.4f}\nPearson    {:.4f}\nMSE        {:.4f}\nover       {} {}\n", ranks, plain,
             error, truth.size(), ranking.queries() > 0 ? "pairs" : "rows");
  if (ranking.queries() == 0) return;
  fmt::print(
      "MRR        {:.4f}\nNDCG@10    {:.4f}\nrecall@1   {:.4f}\nrecall@10  {:.4f}\nover       {} queries\n",
      ranking.mrr(), ranking.ndcg_at_10(), ranking.recall(1), ranking.recall(10), ranking.queries());
}

int eval_reranker(const embed::TextClassifier& classifier, const text::LabelledTexts& texts,
                  const Tensor& logits, const EncoderTest& test, const CommonOptions& common) {
  if (!test.page.empty()) throw UsageError("--page has no effect on a model with one label");
  const bool predicts_numbers = classifier.problem_type() == models::ProblemType::regression;
  const bool ranks = !texts.seconds.empty() && !predicts_numbers;
  const Tensor scores =
      classifier.has_sigmoid() && !predicts_numbers ? embed::label_probabilities(logits) : logits;
  std::string lines = texts.seconds.empty() ? "label\tscore\ttext\n" : "label\tscore\ttext\ttext_pair\n";
  std::vector<Judged> judged;
  for (size_t i = 0; i < texts.labels.size(); ++i) {
    const std::string where = concat(test.data, ": line ", texts.lines[i]);
    const double truth = number_in(texts.labels[i], "the label", where);
    if (truth < 0 && ranks)
      throw InputError(concat(where, ": a relevance must not be negative, got ", quote(texts.labels[i], 40)));
    const float score = scores.data<float>()[i];
    check_number(test.folder, "a score", score);
    judged.push_back({texts.texts[i], texts.seconds.empty() ? "" : texts.seconds[i], truth, score});
    lines += fmt::format("{}\t{:.6f}\t{}", texts.labels[i], score, cell(texts.texts[i]));
    lines += texts.seconds.empty() ? "\n" : "\t" + cell(texts.seconds[i]) + "\n";
  }
  if (ranks) judged = without_repeats(judged);
  if (judged.size() < 2)
    throw InputError(concat(test.data, ": it has one ", texts.labels.size() > 1 ? "pair" : "row",
                            ", at least 2 are needed"));
  if (!test.predictions.empty()) write_file_atomically(test.predictions, lines);
  report_ranking(judged, common);
  return kDone;
}

}  // namespace

double number_in(const std::string& text, const std::string& what, const std::string& where) {
  const auto value = spelled_number<double>(text);
  if (!value || !std::isfinite(*value))
    throw InputError(concat(where, ": ", what, " must be a number, got ", quote(text, 40)));
  return *value;
}

std::string cell(const std::string& text) {
  std::string line = one_line(text);
  std::ranges::replace(line, '\t', ' ');
  return line;
}

int eval_classifier(const EncoderTest& test, const CommonOptions& common) {
  const auto classifier = reading([&] { return embed::TextClassifier::load(test.folder); });
  const bool takes_several = classifier.problem_type() == models::ProblemType::multi_label;
  const text::LabelledTexts texts = reading([&] { return text::read_labelled(test.data, test.format); });
  TextMeter meter(common.quiet);
  const embed::ClassifyOptions options = {
      .progress = [&](int64_t done, int64_t total) { meter(done, total); }};
  std::vector<embed::TextPair> pairs;
  LabelledInputs inputs = {.model = test.folder, .labels = texts.labels, .columns = "text", .unit = "text"};
  if (!texts.seconds.empty()) inputs.columns = "text\ttext_pair";
  for (size_t i = 0; i < texts.texts.size(); ++i) {
    inputs.places.push_back(concat(test.data, ": line ", texts.lines[i]));
    inputs.shown.push_back(cell(texts.texts[i]));
    if (texts.seconds.empty()) continue;
    pairs.emplace_back(texts.texts[i], texts.seconds[i]);
    inputs.shown.back() += "\t" + cell(texts.seconds[i]);
  }
  if (takes_several) {  // before the work
    label_sets(names_of(classifier), inputs);
  } else if (classifier.num_labels() > 1) {
    label_ids(names_of(classifier), inputs);
  }
  const Tensor logits =
      pairs.empty() ? classifier.logits(texts.texts, options) : classifier.logits(pairs, options);
  if (takes_several) {
    report_label_sets(classifier, logits, inputs, test, common);
    return kDone;
  }
  if (classifier.num_labels() == 1) return eval_reranker(classifier, texts, logits, test, common);
  report_on(classifier, logits, inputs, test, common);
  return kDone;
}

int eval_images(const EncoderTest& test, const CommonOptions& common) {
  const auto classifier = reading([&] { return embed::ImageClassifier::load(test.folder); });
  const embed::LabelledFiles files = reading([&] { return embed::list_images(test.data); });
  LabelledInputs inputs = {.model = test.folder, .labels = files.labels, .columns = "file", .unit = "image"};
  inputs.places = files.files;
  for (const std::string& file : files.files) inputs.shown.push_back(cell(file));
  label_ids(names_of(classifier), inputs);  // before the work
  std::vector<Tensor> rows;
  TextMeter meter(common.quiet, "images");
  for (const std::string& file : files.files) {
    reading([&] { return FileReader(file).size(); });
    rows.push_back(classifier.logits(classifier.read({file})));
    meter(std::ssize(rows), std::ssize(files.files));
  }
  report_on(classifier, concat(rows, 0), inputs, test, common);
  return kDone;
}

}  // namespace multihead::cli
