#include "multihead/core/text/numbers-inl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "multihead/core/text/enumeration-inl.h"

namespace multihead {
namespace {

TEST(NumbersTest, TheWholeTextIsANumberOrThereIsNone) {
  EXPECT_EQ(spelled_number<int64_t>("-17"), -17);
  EXPECT_EQ(spelled_number<int64_t>("1f", 16), 31);
  EXPECT_EQ(spelled_number<double>("2.5e3"), 2500);
  EXPECT_TRUE(std::isnan(spelled_number<double>("nan").value()));
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x1", "9223372036854775808", "1.5"}) {
    EXPECT_FALSE(spelled_number<int64_t>(text)) << text;
  }
  EXPECT_FALSE(spelled_number<double>("1,5"));
  EXPECT_FALSE(spelled_number<double>("1e999"));
  EXPECT_FALSE(spelled_number<uint8_t>("256"));
}

TEST(EnumerationTest, ShowsTheFirstAndCountsTheOthers) {
  Enumeration list(2);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.text(), "");
  list.add("a", 1);
  EXPECT_EQ(concat(list), "a1");
  list.add("b");
  EXPECT_EQ(list.text(), "a1, b");
  for (int i = 0; i < 3; ++i) list.add(i);
  EXPECT_EQ(list.text(), "a1, b and 3 more");
}

}  // namespace
}  // namespace multihead
