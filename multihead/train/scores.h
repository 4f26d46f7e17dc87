// How well labels, rankings and numbers are predicted: what scikit-learn's functions of these names give.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::train {

/// The figures of one label, or a mean of several. A ratio without a denominator counts as 0.
struct LabelFigures {
  double precision = 0, recall = 0, f1 = 0;
  int64_t support = 0;  ///< how many examples have the label
};

struct LabelReport {
  std::vector<std::vector<int64_t>> confusion;  ///< [label][guess]
  std::vector<LabelFigures> labels = {};
  LabelFigures macro = {};     ///< the mean over the labels that occur, in the texts or in the guesses
  LabelFigures weighted = {};  ///< the mean by support
  double accuracy = 0;
};
/// One of `num_labels` for each: the guesses, and the truth.
LabelReport report_labels(std::span<const int64_t> guesses, std::span<const int64_t> labels,
                          int64_t num_labels);
/// {"label", "precision", "recall", "f1", "support"}.
Json to_json(const std::string& label, const LabelFigures& figures);
/// {"labels": [{"label", "precision", "recall", "f1", "support"}], "macro_f1", …, "confusion"}.
Json to_json(const LabelReport& report, const std::vector<std::string>& names);
/// Precision, recall and F1 from counts.
LabelFigures figures_of(int64_t right, int64_t guessed, int64_t support);

/// Of texts with any number of labels each.
struct LabelSetReport {
  std::vector<LabelFigures> labels;
  LabelFigures micro = {};  ///< of all labels' counts together
  LabelFigures macro = {};  ///< the mean over all labels
  double accuracy = 0;      ///< share of the texts all of whose labels are right, as in scikit-learn
};
/// For each text and label, text by text, whether it is guessed and whether it holds: 0 or 1.
LabelSetReport report_label_sets(std::span<const uint8_t> guesses, std::span<const uint8_t> truth,
                                 int64_t num_labels);
Json to_json(const LabelSetReport& report, const std::vector<std::string>& names);

/// The mean of the squared differences; NaN of none.
double mean_squared_error(std::span<const double> guesses, std::span<const double> truth);

/// Sums over queries. A query counts only if something is relevant to it.
class RankingScore {
 public:
  /// A query's scores of all documents and how relevant each is (0: not at all, 1, or degrees). Documents with equal
  /// scores count as the mean of all orders of them (McSherry & Najork 2008). Returns the best rank, from 1, that a
  /// relevant document may have; 0: there is none.
  int64_t add(std::span<const float> scores, std::span<const double> gains);

  int64_t queries() const { return queries_; }
  double recall(int64_t at) const;  ///< share of relevant documents among the first 1, 3 or 10
  double mrr() const { return mean(reciprocal_); }
  double ndcg_at_10() const { return mean(ndcg_); }

 private:
  double mean(double sum) const { return queries_ > 0 ? sum / static_cast<double>(queries_) : 0; }

  int64_t queries_ = 0;
  std::array<double, 3> recalls_ = {};
  double reciprocal_ = 0, ndcg_ = 0;
};
Json to_json(const RankingScore& score);

/// Correlation of values, and of their ranks (of equal ones the mean). NaN where one side is constant. Throws
/// ValueError unless both have as many, at least two.
double pearson(std::span<const double> a, std::span<const double> b);
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace multihead::train
