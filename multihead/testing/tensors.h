// Random tensors, and how near two are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "multihead/core/tensor/rng.h"

namespace multihead::testing {

inline Tensor normal(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return randn(shape, rng);
}

inline void expect_near(const Tensor& a, const Tensor& b, double tolerance = 2e-5) {
  ASSERT_EQ(a.shape(), b.shape());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance) << "at " << i;
}

inline double largest_finite(const Tensor& x) {
  double largest = 0;
  for (const double v : x.to_vector<double>())
    largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0.0);
  return largest;
}

}  // namespace multihead::testing
