#include "multihead/optim/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::optim {
namespace {

using Point = std::vector<double>;

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double largest(std::span<const double> x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

// The last moves and the changes of the gradient that came with them.
class Curvature {
 public:
  explicit Curvature(int64_t most) : most_(static_cast<size_t>(most)) {}

  // A pair without positive curvature would make the next direction lead upwards.
  void add(Point move, Point change) {
    const double product = dot(move, change);
    if (!(product > 1e-12 * std::sqrt(dot(move, move) * dot(change, change)))) return;
    if (pairs_.size() == most_) pairs_.pop_front();
    pairs_.push_back({std::move(move), std::move(change), product});
  }
  void clear() { pairs_.clear(); }
  bool empty() const { return pairs_.empty(); }

  // Minus the gradient times the approximate inverse of the second derivatives.
  Point direction(std::span<const double> gradient) const {
    Point d(gradient.begin(), gradient.end());
    std::vector<double> shares(pairs_.size());
    for (size_t i = pairs_.size(); i-- > 0;) {
      shares[i] = dot(pairs_[i].move, d) / pairs_[i].product;
      add_scaled(d, -shares[i], pairs_[i].change);
    }
    const double scale = empty() ? 1 / std::max(std::sqrt(dot(gradient, gradient)), 1e-300)
                                 : pairs_.back().product / dot(pairs_.back().change, pairs_.back().change);
    for (double& value : d) value *= scale;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      add_scaled(d, shares[i] - dot(pairs_[i].change, d) / pairs_[i].product, pairs_[i].move);
    }
    for (double& value : d) value = -value;
    return d;
  }

 private:
  struct Pair {
    Point move, change;
    double product;
  };
  static void add_scaled(Point& to, double factor, const Point& x) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
  }

  size_t most_;
  std::deque<Pair> pairs_;
};

}  // namespace

LbfgsResult minimize(std::span<double> x,
                     FunctionRef<double(std::span<const double> point, std::span<double> gradient)> function,
                     const LbfgsOptions& options) {
  MH_CHECK(!x.empty(), ValueError, "minimize: there are no numbers to choose");
  MH_CHECK(options.tolerance >= 0 && options.steps >= 0 && options.history > 0, ValueError,
           "minimize: tolerance and steps must not be negative and history must be positive, got ",
           options.tolerance, ", ", options.steps, " and ", options.history);
  Point gradient(x.size()), trial(x.size()), trial_gradient(x.size());
  LbfgsResult result = {.value = function(x, gradient)};
  MH_CHECK(std::isfinite(result.value), NumericError, "minimize: the function is ", result.value,
           " at the start");
  Curvature curvature(options.history);
  while (true) {
    result.slope = largest(gradient);
    result.converged = result.slope <= options.tolerance;
    if (result.converged || result.steps == options.steps) return result;
    if (options.should_stop && options.should_stop()) return result;
    const Point direction = curvature.direction(gradient);
    const double slope = dot(direction, gradient);
    // Backtracking until the value falls by a share of what the slope promises.
    constexpr double kShare = 1e-4, kShortest = 1e-12;
    double step = 1, value = 0;
    for (; step > kShortest; step /= 2) {
      for (size_t i = 0; i < x.size(); ++i) trial[i] = x[i] + step * direction[i];
      value = function(trial, trial_gradient);
      if (value <= result.value + kShare * step * slope) break;
    }
    if (step <= kShortest) {
      if (curvature.empty()) return result;  // as low as rounding allows
      curvature.clear();
      continue;
    }
    Point move(x.size()), change(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      move[i] = trial[i] - x[i], change[i] = trial_gradient[i] - gradient[i];
    }
    curvature.add(std::move(move), std::move(change));
    std::ranges::copy(trial, x.begin());
    std::swap(gradient, trial_gradient);
    result.value = value;
    ++result.steps;
  }
}

}  // namespace multihead::optim
