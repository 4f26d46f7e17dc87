// A linear head on vectors that stay as they are: logistic or ridge regression, to convergence.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/models/encoder.h"

namespace multihead::train {

struct LinearHeadOptions {
  /// As in scikit-learn: the losses' sum times c, plus half the squared weights, is minimised. The bias is free.
  double c = 1;
  bool balanced =
      false;  ///< of one label: their losses count by balanced_weights(), as class_weight="balanced"
  double tolerance = 1e-7;  ///< of the derivatives of that over c and the number of vectors
  int64_t steps = 5000;     ///< of L-BFGS, at most
  /// Polled before each step; once true, the head is what was found so far.
  std::function<bool()> should_stop = {};
};

struct LinearHead {
  Tensor weight, bias;  ///< f32 [labels, dim], [labels]: logits = vectors · weightᵀ + bias
  double loss = 0;      ///< the mean over the vectors
  int64_t steps = 0;
  bool converged = false;
};

/// The loss of a vector: of one label among `labels` the cross-entropy of their softmax; of several the sum of the
/// binary cross-entropies of each; of a number half the squared difference. Of two labels the logits are minus
/// and plus half of a single one, whose weights are those that c restrains: the models of scikit-learn's
/// LogisticRegression (l2), OneVsRestClassifier around it, and Ridge with alpha = 1 / c.
///
/// Shapes    vectors [n, dim]; targets i64 [n], or [n, labels] (several labels, numbers)
/// Dtypes    vectors f32, f64; computed in f64
/// Throws    ShapeError, ValueError (options, no vectors, a number that is not finite)
LinearHead fit_linear_head(const Tensor& vectors, const Tensor& targets, int64_t labels,
                           models::ProblemType problem, const LinearHeadOptions& options = {});

struct ChosenC {
  double c = 1;
  std::vector<std::pair<double, double>> losses = {};  ///< of every c that was tried, on what was held out
};
/// The c of 0.01, 0.1, 1, 10, 100, 1000 with the least loss in five-fold cross-validation; each fold has its share
/// of every label. Of fewer than ten vectors 1.
ChosenC choose_c(const Tensor& vectors, const Tensor& targets, int64_t labels, models::ProblemType problem,
                 int64_t seed, const std::function<bool()>& should_stop = {}, bool balanced = false);

}  // namespace multihead::train
