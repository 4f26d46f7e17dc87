#include "multihead/core/text/near_names.h"

#include <gtest/gtest.h>

#include "multihead/testing/processor_time.h"

namespace multihead {
namespace {

TEST(NearNamesTest, DistancesAreThoseOfLevenshtein) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

TEST(NearNamesTest, TheNearestNameIsNamedIfItIsNear) {
  NearNames hints({"encoder.layers.0.weight", "encoder.layers.1.weight", "pooler.bias"});
  EXPECT_EQ(hints("encoder.layer.1.weight"), "; the nearest is encoder.layers.1.weight");
  EXPECT_EQ(hints("pooler.weight"), "; the nearest is pooler.bias");
  EXPECT_EQ(hints("xyz"), "");
}

TEST(NearNamesTest, ManyAndLongNamesTakeNoTime) {
  const double seconds = testing::processor_seconds([] {
    NearNames hints(std::vector<std::string>(100000, std::string(150, 'a')));
    for (int i = 0; i < 100000; ++i) hints(std::string(150, 'b'));
    NearNames long_names(std::vector<std::string>(10, std::string(1 << 22, 'a')));
    EXPECT_EQ(long_names(std::string(1 << 22, 'b')), "");
  });
  EXPECT_LT(seconds, 10 * testing::kSlowdown);
}

}  // namespace
}  // namespace multihead
