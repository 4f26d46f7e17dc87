#include "multihead/core/tensor/rng.h"

#include <gtest/gtest.h>

namespace multihead {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(PhiloxTest, MatchesTheAuthorsKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
            (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(RngTest, StreamsDifferAndRepeat) {
  Rng a(7), b(7), c(8);
  const RandomStream first = a.next();
  EXPECT_EQ(first.bits(5), b.next().bits(5));
  EXPECT_NE(first.bits(5), a.next().bits(5));
  EXPECT_NE(first.bits(5), c.next().bits(5));
  Rng resumed(7, 1);
  b.next();
  EXPECT_EQ(resumed.next().bits(0), Rng(7, 1).next().bits(0));
}

TEST(RngTest, NormalNumbersHaveTheirMoments) {
  Rng rng(1);
  const Tensor x = randn({100000}, rng, Dtype::f64);
  double sum = 0, squares = 0, fourth = 0;
  for (const double v : x.span<double>()) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.015);
  EXPECT_NEAR(squares / 1e5, 1, 0.02);
  EXPECT_NEAR(fourth / 1e5, 3, 0.15);
}

}  // namespace
}  // namespace multihead
