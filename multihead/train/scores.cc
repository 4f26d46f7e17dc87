#include "multihead/train/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last < order.size() && values[order[last]] == values[order[first]]) ++last;
    const double shared = static_cast<double>(first + last - 1) / 2;
    for (; first < last; ++first) ranks[order[first]] = shared;
  }
  return ranks;
}

}  // namespace

LabelFigures figures_of(int64_t right, int64_t guessed, int64_t support) {
  const auto r = static_cast<double>(right), g = static_cast<double>(guessed),
             s = static_cast<double>(support);
  return {ratio(r, g), ratio(r, s), ratio(2 * r, g + s), support};
}

LabelReport report_labels(std::span<const int64_t> guesses, std::span<const int64_t> labels,
                          int64_t num_labels) {
  const auto width = static_cast<size_t>(num_labels);
  LabelReport report = {std::vector(width, std::vector<int64_t>(width))};
  for (size_t i = 0; i < labels.size(); ++i) {
    ++report.confusion[static_cast<size_t>(labels[i])][static_cast<size_t>(guesses[i])];
  }
  int64_t occurring = 0, all_right = 0;
  for (size_t label = 0; label < width; ++label) {
    int64_t guessed = 0, support = 0;
    for (size_t other = 0; other < width; ++other) {
      guessed += report.confusion[other][label], support += report.confusion[label][other];
    }
    const int64_t right = report.confusion[label][label];
    const LabelFigures one = report.labels.emplace_back(figures_of(right, guessed, support));
    all_right += right;
    if (guessed + support == 0) continue;
    ++occurring;
    const auto add = [&](LabelFigures& sum, double weight) {
      sum.precision += weight * one.precision, sum.recall += weight * one.recall, sum.f1 += weight * one.f1;
      sum.support += support;
    };
    add(report.macro, 1), add(report.weighted, static_cast<double>(support));
  }
  const auto count = static_cast<double>(labels.size());
  for (auto [sum, by] :
       {std::pair(&report.macro, static_cast<double>(occurring)), {&report.weighted, count}}) {
    sum->precision = ratio(sum->precision, by), sum->recall = ratio(sum->recall, by);
    sum->f1 = ratio(sum->f1, by);
  }
  report.accuracy = ratio(static_cast<double>(all_right), count);
  return report;
}

Json to_json(const std::string& label, const LabelFigures& figures) {
  return Json::object({{"label", label},
                       {"precision", figures.precision},
                       {"recall", figures.recall},
                       {"f1", figures.f1},
                       {"support", figures.support}});
}

Json to_json(const LabelReport& report, const std::vector<std::string>& names) {
  Json rows = Json::array(), confusion = Json::array();
  for (size_t i = 0; i < names.size(); ++i) {
    rows.push_back(to_json(names[i], report.labels[i]));
    confusion.push_back(std::vector<Json>(report.confusion[i].begin(), report.confusion[i].end()));
  }
  return Json::object({{"accuracy", report.accuracy},
                       {"macro_precision", report.macro.precision},
                       {"macro_recall", report.macro.recall},
                       {"macro_f1", report.macro.f1},
                       {"weighted_f1", report.weighted.f1},
                       {"labels", rows},
                       {"confusion", confusion}});
}

LabelSetReport report_label_sets(std::span<const uint8_t> guesses, std::span<const uint8_t> truth,
                                 int64_t num_labels) {
  const auto width = static_cast<size_t>(num_labels);
  LabelSetReport report;
  int64_t all_right = 0, all_guessed = 0, all_support = 0;
  for (size_t label = 0; label < width; ++label) {
    int64_t right = 0, guessed = 0, support = 0;
    for (size_t at = label; at < truth.size(); at += width) {
      right += guesses[at] & truth[at], guessed += guesses[at], support += truth[at];
    }
    const LabelFigures one = report.labels.emplace_back(figures_of(right, guessed, support));
    report.macro.precision += one.precision / static_cast<double>(width);
    report.macro.recall += one.recall / static_cast<double>(width);
    report.macro.f1 += one.f1 / static_cast<double>(width);
    all_right += right, all_guessed += guessed, all_support += support;
  }
  report.micro = figures_of(all_right, all_guessed, all_support);
  report.macro.support = all_support;
  const size_t texts = truth.size() / width;
  int64_t exact = 0;
  for (size_t i = 0; i < texts; ++i) {
    const size_t at = i * width;
    exact += std::ranges::equal(guesses.subspan(at, width), truth.subspan(at, width)) ? 1 : 0;
  }
  report.accuracy = ratio(static_cast<double>(exact), static_cast<double>(texts));
  return report;
}

Json to_json(const LabelSetReport& report, const std::vector<std::string>& names) {
  Json rows = Json::array();
  for (size_t i = 0; i < names.size(); ++i) rows.push_back(to_json(names[i], report.labels[i]));
  return Json::object({{"micro_precision", report.micro.precision},
                       {"micro_recall", report.micro.recall},
                       {"micro_f1", report.micro.f1},
                       {"macro_f1", report.macro.f1},
                       {"accuracy", report.accuracy},
                       {"labels", rows}});
}

double mean_squared_error(std::span<const double> guesses, std::span<const double> truth) {
  double sum = 0;
  for (size_t i = 0; i < truth.size(); ++i) sum += (guesses[i] - truth[i]) * (guesses[i] - truth[i]);
  return sum / static_cast<double>(truth.size());
}

namespace {

// The mean of 1 / the rank of the first relevant one, over all orders of `size` documents, `relevant` of which are, at the
// ranks from `rank` on.
double mean_reciprocal(int64_t rank, int64_t size, int64_t relevant) {
  double sum = 0, none_before = 1;
  for (int64_t at = 0; at <= size - relevant; ++at) {
    const double share = static_cast<double>(relevant) / static_cast<double>(size - at);
    sum += none_before * share / static_cast<double>(rank + at);
    none_before *= 1 - share;
  }
  return sum;
}

double discount(size_t rank) { return 1 / std::log2(static_cast<double>(rank) + 2); }

}  // namespace

int64_t RankingScore::add(std::span<const float> scores, std::span<const double> gains) {
  constexpr std::array<size_t, 3> kRecalls = {1, 3, 10};
  constexpr size_t kNdcg = 10;
  const size_t count = scores.size();
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<double> best(gains.begin(), gains.end());
  std::ranges::sort(best, std::greater());
  const auto relevant = std::ranges::count_if(gains, [](double g) { return g > 0; });
  if (relevant == 0) return 0;
  double gained = 0, ideal = 0;
  int64_t first = 0;
  for (size_t rank = 0; rank < std::min(kNdcg, count); ++rank) ideal += best[rank] * discount(rank);
  for (size_t begin = 0, end = 0; begin < count && (begin < kNdcg || first == 0); begin = end) {
    double gain = 0;
    int64_t found = 0;
    for (; end < count && (end == begin || scores[order[end]] == scores[order[begin]]); ++end) {
      gain += gains[order[end]];
      found += gains[order[end]] > 0 ? 1 : 0;
    }
    const auto size = static_cast<double>(end - begin);
    for (size_t rank = begin; rank < std::min(kNdcg, end); ++rank) gained += gain / size * discount(rank);
    for (size_t i = 0; i < kRecalls.size(); ++i) {
      const auto within = static_cast<double>(std::clamp(kRecalls[i], begin, end) - begin);
      recalls_[i] += static_cast<double>(found) / static_cast<double>(relevant) * (within / size);
    }
    if (first > 0 || found == 0) continue;
    first = static_cast<int64_t>(begin) + 1;
    reciprocal_ += mean_reciprocal(first, static_cast<int64_t>(end - begin), found);
  }
  ++queries_;
  ndcg_ += gained / ideal;
  return first;
}

double RankingScore::recall(int64_t at) const {
  MH_CHECK(at == 1 || at == 3 || at == 10, ValueError, "recall: expected 1, 3 or 10, got ", at);
  return mean(recalls_[at == 1 ? 0 : at == 3 ? 1 : 2]);
}

Json to_json(const RankingScore& score) {
  return Json::object({{"queries", score.queries()},
                       {"recall_at_1", score.recall(1)},
                       {"recall_at_3", score.recall(3)},
                       {"recall_at_10", score.recall(10)},
                       {"mrr", score.mrr()},
                       {"ndcg_at_10", score.ndcg_at_10()}});
}

double pearson(std::span<const double> a, std::span<const double> b) {
  MH_CHECK(a.size() == b.size() && a.size() > 1, ValueError, "correlation: it needs two or more pairs, got ",
           a.size(), " and ", b.size(), " values");
  const auto count = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / count,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / count;
  double both = 0, only_a = 0, only_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - mean_a, y = b[i] - mean_b;
    both += x * y, only_a += x * x, only_b += y * y;
  }
  const double size = std::sqrt(only_a * only_b);
  return size > 0 ? both / size
                  : std::numeric_limits<double>::quiet_NaN();  // of what does not vary there is none
}

double spearman(std::span<const double> a, std::span<const double> b) {
  return pearson(ranks_of(a), ranks_of(b));
}

}  // namespace multihead::train
