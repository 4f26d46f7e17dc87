#include "multihead/train/linear_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/optim/lbfgs.h"
#include "multihead/train/data/targets.h"
#include "multihead/train/data/windows.h"

namespace multihead::train {
namespace {

using models::ProblemType;

bool is_one_label(ProblemType problem) {
  return problem != ProblemType::multi_label && problem != ProblemType::regression;
}

// log(1 + e^x).
double log_one_plus_exp(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// The losses of vectors by the weights of a head, and their derivatives.
class HeadLoss {
 public:
  // `weights`: of labels; empty: all count the same.
  HeadLoss(Tensor vectors, Tensor targets, int64_t labels, ProblemType problem,
           std::vector<float> weights = {})
      : vectors_(std::move(vectors)),
        targets_(std::move(targets)),
        problem_(problem),
        width_(is_one_label(problem) && labels == 2 ? 1 : labels),
        is_binary_(width_ < labels),
        weights_(std::move(weights)) {}

  int64_t width() const { return width_; }
  bool is_binary() const { return is_binary_; }
  int64_t size() const { return width_ * (vectors_.size(1) + 1); }
  int64_t rows() const { return vectors_.size(0); }

  // The mean loss; its derivatives by weights [width, dim] and biases [width] behind them.
  double operator()(std::span<const double> point, std::span<double> gradient) const {
    const Tensor weight = weights_of(const_cast<double*>(point.data())),
                 bias = Tensor::borrow(const_cast<double*>(point.data()) + width_ * vectors_.size(1),
                                       {width_}, {1}, Dtype::f64);
    Tensor slopes = linear(vectors_, weight, bias);
    const double loss = turn_into_slopes(slopes);
    const Tensor by_weight = matmul(transpose(slopes, 0, 1), vectors_);
    std::copy_n(by_weight.data<double>(), by_weight.numel(), gradient.begin());
    const std::span<double> by_bias = gradient.subspan(static_cast<size_t>(by_weight.numel()));
    std::ranges::fill(by_bias, 0.0);
    const double* slope = slopes.data<double>();
    for (int64_t i = 0; i < slopes.numel(); ++i) by_bias[static_cast<size_t>(i % width_)] += slope[i];
    return loss;
  }

 private:
  Tensor weights_of(double* data) const {
    const int64_t dim = vectors_.size(1);
    return Tensor::borrow(data, {width_, dim}, {dim, 1}, Dtype::f64);
  }

  // Logits become the derivatives of the mean loss by them.
  double turn_into_slopes(Tensor& logits) const {
    std::vector<double> losses(static_cast<size_t>(rows()));
    parallel_for(rows(), [&](int64_t i, int) {
      double* const row = logits.data<double>() + i * width_;
      double& loss = losses[static_cast<size_t>(i)];
      loss = loss_of_row(i, row);
      if (weights_.empty()) return;
      const double weight = weights_[static_cast<size_t>(targets_.data<int64_t>()[i])];
      loss *= weight;
      for (int64_t k = 0; k < width_; ++k) row[k] *= weight;
    });
    const auto count = static_cast<double>(rows());
    double* slope = logits.data<double>();
    for (int64_t i = 0; i < logits.numel(); ++i) slope[i] /= count;
    return std::accumulate(losses.begin(), losses.end(), 0.0) / count;
  }

  double loss_of_row(int64_t i, double* row) const {
    if (!is_one_label(problem_)) {
      const double* target = targets_.data<double>() + i * width_;
      double loss = 0;
      for (int64_t k = 0; k < width_; ++k) {
        const bool is_number = problem_ == ProblemType::regression;
        const double difference = row[k] - target[k];
        loss += is_number ? difference * difference / 2 : log_one_plus_exp(row[k]) - row[k] * target[k];
        row[k] = is_number ? difference : logistic(row[k]) - target[k];
      }
      return loss;
    }
    const int64_t label = targets_.data<int64_t>()[i];
    if (is_binary_) {
      const double z = row[0];
      row[0] = logistic(z) - static_cast<double>(label);
      return log_one_plus_exp(z) - z * static_cast<double>(label);
    }
    const double best = *std::max_element(row, row + width_), own = row[label];
    double sum = 0;
    for (int64_t k = 0; k < width_; ++k) sum += row[k] = std::exp(row[k] - best);
    for (int64_t k = 0; k < width_; ++k) row[k] /= sum;
    row[label] -= 1;
    return std::log(sum) + best - own;
  }

  Tensor vectors_, targets_;
  ProblemType problem_;
  int64_t width_;
  bool is_binary_;  // two labels share a logit
  std::vector<float> weights_;
};

std::vector<float> weights_of(bool balanced, const Tensor& targets, int64_t labels, ProblemType problem) {
  MH_CHECK(!balanced || is_one_label(problem), ValueError,
           "linear head: only labels of which a vector has one "
           "can be balanced");
  return balanced ? balanced_weights(targets, labels).to_vector<float>() : std::vector<float>();
}

Tensor wide(const Tensor& x) {
  return x.dtype() == Dtype::i64 ? x.contiguous() : x.to(Dtype::f64).contiguous();
}

// Point and value of the minimum for one c, from where `point` is.
optim::LbfgsResult solve(const HeadLoss& loss, std::vector<double>& point, const LinearHeadOptions& options) {
  const auto weights = static_cast<size_t>(loss.size() - loss.width());
  const double pull = 1 / (options.c * static_cast<double>(loss.rows()));
  const auto penalised = [&](std::span<const double> x, std::span<double> gradient) {
    double value = loss(x, gradient);
    for (size_t i = 0; i < weights; ++i) {
      value += pull * x[i] * x[i] / 2;
      gradient[i] += pull * x[i];
    }
    return value;
  };
  return optim::minimize(
      point, penalised,
      {.tolerance = options.tolerance, .steps = options.steps, .should_stop = options.should_stop});
}

void check(const Tensor& vectors, const Tensor& targets, int64_t labels, ProblemType problem, double c) {
  const bool is_single = is_one_label(problem);
  MH_CHECK(vectors.rank() == 2 && vectors.numel() > 0 && targets.rank() == (is_single ? 1 : 2) &&
               targets.size(0) == vectors.size(0) && (is_single || targets.size(1) == labels),
           ShapeError, "linear head: expected vectors [n, dim] and targets ",
           is_single ? "[n]" : "[n, labels]", ", got ", vectors.shape(), " and ", targets.shape());
  MH_CHECK(is_single == (targets.dtype() == Dtype::i64), DtypeError, "linear head: targets must be ",
           is_single ? "i64" : "f32 or f64", ", got ", name(targets.dtype()));
  MH_CHECK(c > 0 && std::isfinite(c), ValueError, "linear head: c must be positive and finite, got ", c);
  MH_CHECK(labels > (is_single ? 1 : 0), ValueError, "linear head: expected ", is_single ? 2 : 1,
           " labels or more, got ", labels);
  for (const int64_t label : is_single ? targets.to_vector<int64_t>() : std::vector<int64_t>()) {
    MH_CHECK(label >= 0 && label < labels, ValueError, "linear head: a label must be in [0, ", labels,
             "), got ", label);
  }
  for (const Tensor* numbers : {&vectors, &targets}) {
    for (const double value : numbers->to_vector<double>()) {
      MH_CHECK(std::isfinite(value), ValueError, "linear head: ", numbers == &vectors ? "vectors" : "targets",
               " must be finite, got ", value);
    }
  }
}

// Numbers less their mean, by their deviation, so that a tolerance means the same for any: the head for them is the
// same but for that. Other targets stay.
struct Scaled {
  Tensor targets;
  std::vector<double> means, deviations;
};
Scaled scaled(const Tensor& targets, int64_t labels, ProblemType problem) {
  const auto width = static_cast<size_t>(labels);
  Scaled all = {wide(targets), std::vector<double>(width, 0), std::vector<double>(width, 1)};
  if (problem != ProblemType::regression) return all;
  const auto rows = static_cast<size_t>(targets.size(0));
  all.targets = all.targets.clone();
  double* values = all.targets.data<double>();
  for (size_t k = 0; k < width; ++k) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < rows; ++i) sum += values[i * width + k];
    all.means[k] = sum / static_cast<double>(rows);
    for (size_t i = 0; i < rows; ++i) {
      values[i * width + k] -= all.means[k];
      squares += values[i * width + k] * values[i * width + k];
    }
    if (squares > 0) all.deviations[k] = std::sqrt(squares / static_cast<double>(rows));
    for (size_t i = 0; i < rows; ++i) values[i * width + k] /= all.deviations[k];
  }
  return all;
}

// The rows by fold: those of a label follow each other and so fall into all of them.
std::vector<std::vector<int64_t>> folds_of(const Tensor& targets, int64_t count, int64_t seed) {
  const int64_t rows = targets.size(0);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < rows; ++i) order.push_back(permuted(i, rows, static_cast<uint64_t>(seed), 0));
  if (targets.dtype() == Dtype::i64) {
    const int64_t* label = targets.data<int64_t>();
    std::ranges::stable_sort(order, {}, [&](int64_t row) { return label[row]; });
  }
  std::vector<std::vector<int64_t>> folds(static_cast<size_t>(count));
  for (int64_t i = 0; i < rows; ++i) {
    folds[static_cast<size_t>(i % count)].push_back(order[static_cast<size_t>(i)]);
  }
  return folds;
}

}  // namespace

LinearHead fit_linear_head(const Tensor& vectors, const Tensor& targets, int64_t labels, ProblemType problem,
                           const LinearHeadOptions& options) {
  check(vectors, targets, labels, problem, options.c);
  const NoTape silent;
  const Scaled own = scaled(targets, labels, problem);
  const Tensor all = wide(vectors);
  const std::vector<float> weights = weights_of(options.balanced, targets, labels, problem);
  const HeadLoss loss(all, wide(targets), labels, problem, weights);
  std::vector<double> point(static_cast<size_t>(loss.size()), 0.0), ignored(point.size());
  const optim::LbfgsResult found =
      solve(HeadLoss(all, own.targets, labels, problem, weights), point, options);
  const int64_t dim = vectors.size(1), width = loss.width();
  for (int64_t row = 0; row < width; ++row) {
    const auto at = static_cast<size_t>(row);
    for (int64_t i = 0; i < dim; ++i) point[static_cast<size_t>(row * dim + i)] *= own.deviations[at];
    double& bias = point[static_cast<size_t>(width * dim + row)];
    bias = bias * own.deviations[at] + own.means[at];
  }
  LinearHead head = {.weight = Tensor::empty({labels, dim}),
                     .bias = Tensor::empty({labels}),
                     .loss = loss(point, ignored),
                     .steps = found.steps,
                     .converged = found.converged};
  const auto put = [&](int64_t label, int64_t row, double factor) {
    const double* weight = point.data() + row * dim;
    for (int64_t i = 0; i < dim; ++i) {
      head.weight.data<float>()[label * dim + i] = static_cast<float>(factor * weight[i]);
    }
    head.bias.data<float>()[label] =
        static_cast<float>(factor * point[static_cast<size_t>(width * dim + row)]);
  };
  for (int64_t label = 0; label < labels; ++label) {
    if (loss.is_binary()) {
      put(label, 0, label == 0 ? -0.5 : 0.5);
    } else {
      put(label, label, 1);
    }
  }
  return head;
}

ChosenC choose_c(const Tensor& vectors, const Tensor& targets, int64_t labels, ProblemType problem,
                 int64_t seed, const std::function<bool()>& should_stop, bool balanced) {
  constexpr int64_t kFolds = 5;
  constexpr double kTried[] = {0.01, 0.1, 1, 10, 100, 1000};
  check(vectors, targets, labels, problem, 1);
  const int64_t count = vectors.size(0);
  ChosenC chosen;
  if (count < 2 * kFolds) return chosen;
  const NoTape silent;
  const Tensor all = wide(vectors), all_targets = scaled(targets, labels, problem).targets;
  for (const double c : kTried) chosen.losses.emplace_back(c, 0);
  const std::vector<float> weights = weights_of(balanced, targets, labels, problem);
  const auto folds = folds_of(all_targets, kFolds, seed);
  for (const std::vector<int64_t>& held : folds) {
    std::vector<int64_t> kept;
    for (const std::vector<int64_t>& fold : folds) {
      if (&fold != &held) kept.insert(kept.end(), fold.begin(), fold.end());
    }
    const auto loss_on = [&](const std::vector<int64_t>& rows) {
      return HeadLoss(embedding(all, Tensor::of<int64_t>({std::ssize(rows)}, rows)),
                      target_rows(all_targets, rows), labels, problem, weights);
    };
    const HeadLoss training = loss_on(kept), validation = loss_on(held);
    std::vector<double> point(static_cast<size_t>(training.size()), 0.0), ignored(point.size());
    for (auto& [c, sum] : chosen.losses) {  // each begins where the one before ended
      if (should_stop && should_stop()) return chosen;
      solve(training, point, {.c = c, .tolerance = 1e-4, .steps = 500, .should_stop = should_stop});
      sum += validation(point, ignored) * static_cast<double>(validation.rows()) / static_cast<double>(count);
    }
  }
  chosen.c = std::ranges::min_element(chosen.losses, {}, &std::pair<double, double>::second)->first;
  return chosen;
}

}  // namespace multihead::train
