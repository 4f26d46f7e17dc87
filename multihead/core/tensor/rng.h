// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3"). Element i of a stream is a function of (seed, stream, i) alone, independent of threads and
// tiling.
#pragma once

#include <array>
#include <cstdint>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// One Philox4x32-10 block: 128 random bits for a 128-bit counter under a 64-bit key.
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// An endless sequence of blocks; an op keeps it to draw the same numbers again in its backward.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t stream = 0;

  std::array<uint32_t, 4> block(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  /// The i-th 32-bit word.
  uint32_t bits(uint64_t i) const { return block(i / 4)[i % 4]; }
  /// The i-th number in [0, 1), with 24 random bits.
  float uniform(uint64_t i) const { return static_cast<float>(bits(i) >> 8) * 0x1p-24f; }
};

/// A seed and the number of streams drawn from it, which are the whole state.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t drawn = 0) : seed_(seed), drawn_(drawn) {}
  uint64_t seed() const { return seed_; }
  uint64_t drawn() const { return drawn_; }
  /// A new stream. Each use of randomness (a dropout call, a weight) takes its own.
  RandomStream next() { return {seed_, drawn_++}; }

 private:
  uint64_t seed_;
  uint64_t drawn_;
};

/// Fills with uniform numbers in [low, high).
void fill_uniform(const Tensor& x, double low, double high, RandomStream stream);
/// Fills with normal numbers (Box-Muller in f64).
void fill_normal(const Tensor& x, double mean, double std, RandomStream stream);

inline Tensor rand(const Shape& shape, Rng& rng, Dtype dtype = Dtype::f32) {
  Tensor x = Tensor::empty(shape, dtype);
  fill_uniform(x, 0, 1, rng.next());
  return x;
}
inline Tensor randn(const Shape& shape, Rng& rng, Dtype dtype = Dtype::f32) {
  Tensor x = Tensor::empty(shape, dtype);
  fill_normal(x, 0, 1, rng.next());
  return x;
}

}  // namespace multihead
