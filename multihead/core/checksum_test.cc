#include "multihead/core/checksum.h"

#include <gtest/gtest.h>

namespace multihead {
namespace {

TEST(ChecksumTest, MatchesThePublishedCheckValue) {
  EXPECT_EQ(checksum_text(checksum("123456789")), "995dc9bbdf1939fa");
  EXPECT_EQ(checksum_text(checksum("")), "0000000000000000");
}

TEST(ChecksumTest, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 1009; ++i) text += static_cast<char>(i * 37 + i / 11);
  for (const size_t cut : {0, 1, 7, 8, 9, 63, 1008, 1009}) {
    Checksum sum;
    sum.update(text.data(), cut);
    sum.update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(sum.value(), checksum(text)) << cut;
  }
}

TEST(ChecksumTest, EveryFlippedBitShows) {
  std::string text(67, 'x');
  const uint64_t sum = checksum(text);
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(checksum(text), sum) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace multihead
