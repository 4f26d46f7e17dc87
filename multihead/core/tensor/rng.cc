#include "multihead/core/tensor/rng.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "multihead/core/error.h"
#include "multihead/core/tensor/element_loops-inl.h"
#include "multihead/core/threads/parallel.h"

namespace multihead {
namespace {

constexpr int64_t kGroup = 32;    // elements of 16 blocks, two each
constexpr int64_t kGrain = 1024;  // elements

// 53 bits in (0, 1): never 0, so that its logarithm is finite.
double open_uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(static_cast<int64_t>(bits)) + 0.5) * 0x1p-53;
}

// Fills a contiguous floating tensor; values(words, numbers) makes the 32 elements of 16 blocks, two from
// each.
template <class F>
void fill_with(const Tensor& x, const RandomStream& stream, F&& values) {
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      const auto elements = x.span<T>();
      const auto count = static_cast<int64_t>(elements.size());
      parallel_ranges((count + kGroup - 1) / kGroup, kGrain / kGroup, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) {
          uint32_t words[2 * kGroup];
          detail::element_loops.random_words(stream, group, 1, words);
          T numbers[kGroup];
          values(words, numbers);
          const int64_t at = group * kGroup;
          std::copy(numbers, numbers + std::min(kGroup, count - at), elements.begin() + at);
        }
      });
    } else {
      throw DtypeError(concat("random numbers: expected f32 or f64, got ", x.dtype()));
    }
  });
}

}  // namespace

void detail::random_words_plain(const RandomStream& stream, int64_t first_group, int64_t groups,
                                uint32_t* words) {
  for (int64_t i = 0; i < 16 * groups; ++i) {
    const auto block = stream.block(static_cast<uint64_t>(16 * first_group + i));
    for (int64_t w = 0; w < 4; ++w) words[i / 16 * 64 + 16 * w + i % 16] = block[static_cast<size_t>(w)];
  }
}

void fill_uniform(const Tensor& x, double low, double high, RandomStream stream) {
  MH_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high, ValueError,
           "fill_uniform: expected low <= high, both finite, got ", low, " and ", high);
  fill_with(x, stream, [&]<class T>(const uint32_t* words, T* numbers) {
    if constexpr (std::is_same_v<T, float>) {
      if (detail::element_loops.uniform_floats(words, low, high, numbers)) return;
    }
    for (int64_t b = 0; b < 16; ++b) {
      numbers[2 * b] = static_cast<T>(low + (high - low) * open_uniform(words[b], words[16 + b]));
      numbers[2 * b + 1] = static_cast<T>(low + (high - low) * open_uniform(words[32 + b], words[48 + b]));
    }
  });
}

void fill_normal(const Tensor& x, double mean, double std, RandomStream stream) {
  MH_CHECK(std::isfinite(mean) && std::isfinite(std) && std >= 0, ValueError,
           "fill_normal: mean must be finite and std finite and not negative, got ", mean, " and ", std);
  fill_with(x, stream, [&]<class T>(const uint32_t* words, T* numbers) {
    if constexpr (std::is_same_v<T, float>) {
      if (detail::element_loops.normal_floats(words, mean, std, numbers)) return;
    }
    double radius[16], angle[16];
    for (int64_t b = 0; b < 16; ++b) {
      radius[b] = std * std::sqrt(-2 * std::log(open_uniform(words[b], words[16 + b])));
      angle[b] = 2 * std::numbers::pi * open_uniform(words[32 + b], words[48 + b]);
    }
    // In loops of their own: GCC would make one sincos of the two, which need not have their bits.
    for (int64_t b = 0; b < 16; ++b) numbers[2 * b] = static_cast<T>(mean + radius[b] * std::cos(angle[b]));
    for (int64_t b = 0; b < 16; ++b)
      numbers[2 * b + 1] = static_cast<T>(mean + radius[b] * std::sin(angle[b]));
  });
}

}  // namespace multihead
