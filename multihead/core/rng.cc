#include "multihead/core/rng.h"

#include <cmath>
#include <numbers>

#include "multihead/core/error.h"

namespace multihead {
namespace {

// Assigns value(i) to element i of a contiguous floating tensor.
template <class F>
void fill_with(const Tensor& x, F&& value) {
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      const auto elements = x.span<T>();
      for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<T>(value(i));
    } else {
      throw DtypeError(concat("random numbers: expected f32 or f64, got ", x.dtype()));
    }
  });
}

// 53 bits in (0, 1): never 0, so that its logarithm is finite.
double open_uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace

void fill_uniform(const Tensor& x, double low, double high, RandomStream stream) {
  fill_with(x, [&](uint64_t i) {
    const auto block = stream.block(i / 2);
    const size_t at = i % 2 * 2;
    return low + (high - low) * open_uniform(block[at], block[at + 1]);
  });
}

void fill_normal(const Tensor& x, double mean, double std, RandomStream stream) {
  fill_with(x, [&](uint64_t i) {
    const auto block = stream.block(i / 2);
    const double radius = std::sqrt(-2 * std::log(open_uniform(block[0], block[1])));
    const double angle = 2 * std::numbers::pi * open_uniform(block[2], block[3]);
    return mean + std * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  });
}

}  // namespace multihead
