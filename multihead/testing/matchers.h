// GoogleTest matchers for tensors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/tensor/tensor.h"

namespace multihead::testing {

struct Tolerance {
  double atol = 0;
  double rtol = 0;  ///< of the expected value
};

/// Same shape, and |got - expected| <= atol + rtol |expected| everywhere; equal infinities match, NaN never
/// does.
inline ::testing::AssertionResult near(const Tensor& got, const Tensor& expected, Tolerance tolerance) {
  if (got.shape() != expected.shape()) {
    return ::testing::AssertionFailure()
           << "shape " << to_string(got.shape()) << ", expected " << to_string(expected.shape());
  }
  const std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  size_t worst = 0, wrong = 0;
  double excess = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double error = std::abs(a[i] - b[i]);
    const double over =
        std::isnan(error) ? INFINITY : error - (tolerance.atol + tolerance.rtol * std::abs(b[i]));
    if (over <= 0) continue;
    ++wrong;
    if (over > excess) {
      excess = over;
      worst = i;
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << wrong << " of " << a.size() << " elements differ, most at flat index " << worst << ": got "
         << a[worst] << ", expected " << b[worst];
}

/// Same shape, dtype and bits.
inline ::testing::AssertionResult same_bits(const Tensor& got, const Tensor& expected) {
  if (got.shape() != expected.shape() || got.dtype() != expected.dtype()) {
    return ::testing::AssertionFailure()
           << to_string(got) << " and " << to_string(expected) << " differ in kind";
  }
  const Tensor a = got.contiguous(), b = expected.contiguous();
  if (a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0) return ::testing::AssertionSuccess();
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  size_t i = 0;
  while (i + 1 < x.size() && x[i] == y[i]) ++i;
  return ::testing::AssertionFailure()
         << "bits differ, first at flat index " << i << ": " << x[i] << " and " << y[i];
}

MATCHER_P3(TensorNear, expected, atol, rtol,
           concat("is within ", atol, " + ", rtol, "·|x| of ", to_string(Tensor(expected)))) {
  const auto result = near(arg, expected, {static_cast<double>(atol), static_cast<double>(rtol)});
  if (!result) *result_listener << result.message();
  return static_cast<bool>(result);
}

MATCHER_P(SameBits, expected, concat("has the bits of ", to_string(Tensor(expected)))) {
  const auto result = same_bits(arg, expected);
  if (!result) *result_listener << result.message();
  return static_cast<bool>(result);
}

}  // namespace multihead::testing

/// EXPECT_MESSAGE(call(), ShapeError, "linear: weight"): throws exactly that type, with these words in the
/// message.
#define EXPECT_MESSAGE(statement, Error, words)                                                      \
  do {                                                                                               \
    try {                                                                                            \
      static_cast<void>(statement);                                                                  \
      ADD_FAILURE() << "expected " #Error " from " #statement;                                       \
    } catch (const ::multihead::Error& error) {                                                      \
      EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(words));                           \
    } catch (const std::exception& error) {                                                          \
      ADD_FAILURE() << "expected " #Error " from " #statement ", got another one: " << error.what(); \
    }                                                                                                \
  } while (false)
