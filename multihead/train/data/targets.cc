#include "multihead/train/data/targets.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/shape.h"

namespace multihead::train {
namespace {

using models::ProblemType;
using Names = std::vector<std::string>;

// A text's labels: one, or all of a list.
std::vector<Names> label_lists(const text::LabelledTexts& texts, ProblemType problem, const char* which) {
  std::vector<Names> lists;
  for (size_t i = 0; i < texts.labels.size(); ++i) {
    const std::string where = concat("train: line ", texts.lines[i], " of the ", which, " data");
    if (problem == ProblemType::multi_label) {
      lists.push_back(text::labels_in(texts.labels[i], where));
      continue;
    }
    MH_CHECK(!text::is_label_list(texts.labels[i]), FormatError, where, " has a list of labels, ",
             quote(texts.labels[i], 60), "; give --multi-label true to learn each of them");
    lists.push_back({texts.labels[i]});
  }
  return lists;
}

Names distinct(const std::vector<Names>& lists) {
  Names all;
  for (const Names& list : lists) all.insert(all.end(), list.begin(), list.end());
  return text::distinct_labels(all);
}

// The encoder's own labels, if no others occur.
Names names_of(const std::vector<Names>& lists, const models::EncoderConfig& config) {
  Names found = distinct(lists);
  const auto is_known = [&](const std::string& label) {
    return std::find(config.labels.begin(), config.labels.end(), label) != config.labels.end();
  };
  const bool keeps =
      config.head == models::EncoderHead::classification && std::all_of(found.begin(), found.end(), is_known);
  return keeps ? config.labels : found;
}

Tensor label_targets(const Names& names, const std::vector<Names>& lists, ProblemType problem) {
  const std::map<std::string, int64_t> ids = text::label_ids(names, "train");
  const int64_t count = std::ssize(lists), width = std::ssize(names);
  const bool takes_several = problem == ProblemType::multi_label;
  Tensor targets = takes_several ? Tensor::zeros({count, width}) : Tensor::empty({count}, Dtype::i64);
  for (int64_t i = 0; i < count; ++i) {
    for (const std::string& label : lists[static_cast<size_t>(i)]) {
      const auto found = ids.find(label);
      MH_CHECK(found != ids.end(), FormatError, "train: the validation data has the label ", quote(label),
               ", which the training data lacks");
      if (takes_several) {
        targets.data<float>()[i * width + found->second] = 1;
      } else {
        targets.data<int64_t>()[i] = found->second;
      }
    }
  }
  return targets;
}

std::optional<double> finite_number(const std::string& label) {
  const auto value = spelled_number<double>(label);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Numbers with a fraction are measurements, which a classifier would take for names.
void check_names(const Names& labels) {
  const auto has_fraction = [](const std::string& label) { return label.find('.') != label.npos; };
  const bool numbers =
      std::ranges::all_of(labels, [](const auto& label) { return finite_number(label).has_value(); });
  MH_CHECK(!numbers || std::ranges::none_of(labels, has_fraction), FormatError,
           "train: the labels are numbers, such as ", labels.back(),
           ", and a classifier knows no order of them; give --regression true to predict the numbers, "
           "--labels-as-names true if they are names");
}

// The labels by their counts, most frequent first.
std::vector<std::pair<int64_t, std::string>> counts_of(const std::vector<Names>& lists) {
  std::map<std::string, int64_t> counts;
  for (const Names& list : lists) {
    for (const std::string& label : list) ++counts[label];
  }
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [label, count] : counts) order.emplace_back(count, label);
  std::ranges::stable_sort(order, std::greater(), &std::pair<int64_t, std::string>::first);
  return order;
}

double rounded(double x) { return std::round(1e4 * x) / 1e4; }

void describe_labels(Targets& targets, const std::vector<Names>& training,
                     const std::vector<Names>& validation, const char* unit) {
  constexpr size_t kShown = 30;
  const auto counts = counts_of(training);
  Enumeration list(kShown);
  for (const auto& [count, label] : counts) list.add(label, " ", count);
  targets.notes.push_back(
      concat(training.size(), " training ", unit, ", ", counts.size(), " labels: ", list));
  if (!validation.empty() && targets.problem == ProblemType::single_label) {
    const auto hits = std::ranges::count(validation, Names{counts[0].second});
    targets.notes.push_back(concat(validation.size(), " validation ", unit, "; \"", counts[0].second,
                                   "\" for all of them would have an accuracy of ",
                                   rounded(static_cast<double>(hits) / std::ssize(validation))));
  }
  std::map<std::string, std::string> known;
  for (const auto& [count, label] : counts) {
    const auto [other, is_new] = known.emplace(in_lower_case(label), label);
    if (is_new) continue;
    targets.warnings.push_back(concat("the labels ", quote(other->second), " and ", quote(label), " (", count,
                                      " ", unit, ") differ in capital letters only"));
  }
}

// A header with names that are not known is read as a text: its label is no other's, and the others repeat.
void warn_of_header(Targets& targets, const text::LabelledTexts& texts, const std::vector<Names>& lists) {
  if (texts.has_names || texts.texts.empty() || lists[0].size() != 1) return;
  const auto counts = counts_of(lists);
  const std::pair<int64_t, std::string> alone = {1, lists[0][0]};
  if (counts.size() < 3 || counts[1].first < 2 || std::ranges::find(counts, alone) == counts.end()) return;
  targets.warnings.push_back(concat("line ", texts.lines[0], " of the training data reads like a header: no ",
                                    "other has the label ", quote(alone.second, 40),
                                    "; if it is one, name the ", "columns \"text\" and \"label\""));
}

Tensor number_targets(const text::LabelledTexts& texts, const char* which) {
  Tensor targets = Tensor::empty({std::ssize(texts.labels), 1});
  for (size_t i = 0; i < texts.labels.size(); ++i) {
    const auto value = finite_number(texts.labels[i]);
    MH_CHECK(value && std::abs(*value) < 1e30, FormatError, "train: line ", texts.lines[i], " of the ", which,
             " data: with --regression a label must be a number, got ", quote(texts.labels[i], 40));
    targets.data<float>()[i] = static_cast<float>(*value);
  }
  return targets;
}

void describe_numbers(Targets& targets) {
  const auto figures = [](const Tensor& x) {
    const std::span<const float> values = x.span<float>();
    const double count = static_cast<double>(std::max<size_t>(values.size(), 1)),
                 mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const float value : values) squares += (value - mean) * (value - mean);
    return std::pair(mean, squares / count);
  };
  const auto [mean, variance] = figures(targets.training);
  targets.notes.push_back(concat(targets.training.size(0), " training texts with numbers: mean ",
                                 rounded(mean), ", standard deviation ", rounded(std::sqrt(variance))));
  if (targets.validation.numel() > 0) {
    const auto [own, own_variance] = figures(targets.validation);
    targets.notes.push_back(concat(targets.validation.size(0),
                                   " validation texts; the training mean for all of them would have a mean "
                                   "squared error of ",
                                   rounded(own_variance + (own - mean) * (own - mean))));
  }
  const double deviation = std::sqrt(variance);
  if (deviation > 10 || std::abs(mean) > 10 || (deviation > 0 && deviation < 0.05)) {
    targets.warnings.push_back(
        "the numbers are far from a scale of 1, on which the rates are meant to work: divide them, or give "
        "--head-only true, for which their scale does not matter");
  }
}

}  // namespace

Targets read_targets(const text::LabelledTexts& training, const text::LabelledTexts& validation,
                     ProblemType problem, const models::EncoderConfig& known, bool labels_as_names,
                     const char* unit) {
  Targets targets = {.problem = problem};
  if (problem == ProblemType::regression) {
    const bool is_named =
        known.head == models::EncoderHead::classification && known.num_labels == 1 && !known.labels.empty();
    targets.names = is_named ? known.labels : Names{"LABEL_0"};
    targets.training = number_targets(training, "training");
    targets.validation = number_targets(validation, "validation");
    describe_numbers(targets);
  } else {
    const std::vector<Names> lists = label_lists(training, problem, "training"),
                             other = label_lists(validation, problem, "validation");
    targets.names = names_of(lists, known);
    MH_CHECK(!targets.names.empty(), FormatError, "train: none of the ", unit, " has a label");
    if (!labels_as_names) check_names(targets.names);
    MH_CHECK(targets.names.size() > 1 || problem == ProblemType::multi_label, FormatError, "train: all ",
             unit, " have the label ", quote(targets.names[0]), "; a classifier needs two");
    targets.training = label_targets(targets.names, lists, problem);
    targets.validation = label_targets(targets.names, other, problem);
    describe_labels(targets, lists, other, unit);
    warn_of_header(targets, training, lists);
  }
  const std::string shared =
      text::shared_rows({training.texts, training.seconds}, {validation.texts, validation.seconds});
  if (!shared.empty()) targets.warnings.push_back(shared);
  return targets;
}

Tensor target_rows(const Tensor& targets, const std::vector<int64_t>& rows) {
  const Tensor places = Tensor::of<int64_t>({std::ssize(rows)}, rows);
  if (targets.rank() == 2) return embedding(targets, places);
  return reshape(embedding(reshape(targets, {-1, 1}), places), {-1});
}

Tensor head_loss(Tensor logits, const Tensor& targets, ProblemType problem, double label_smoothing,
                 const Tensor& weights) {
  if (problem == ProblemType::regression) return mean(square(sub(logits, targets)));
  if (problem == ProblemType::multi_label) return mean(sub(softplus(logits), mul(logits, targets)));
  if (!weights.defined())
    return cross_entropy(std::move(logits), targets, {.label_smoothing = label_smoothing});
  const Tensor own = target_rows(weights, targets.to_vector<int64_t>());
  const Tensor losses = cross_entropy(std::move(logits), targets, {.reduction = Reduction::none});
  return scale(sum(mul(losses, own)), 1 / sum(own).item());
}

Tensor balanced_weights(const Tensor& targets, int64_t names) {
  std::vector<double> counts(static_cast<size_t>(names), 0);
  for (const int64_t label : targets.to_vector<int64_t>()) ++counts[static_cast<size_t>(label)];
  const auto used =
      static_cast<double>(std::ranges::count_if(counts, [](double count) { return count > 0; }));
  Tensor weights = Tensor::zeros({names});
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0)
      weights.data<float>()[i] =
          static_cast<float>(static_cast<double>(targets.numel()) / (used * counts[i]));
  }
  return weights;
}

}  // namespace multihead::train
