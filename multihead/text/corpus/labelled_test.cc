#include "multihead/text/corpus/labelled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace multihead::text {
namespace {

using ::testing::ElementsAre;

TEST(DistinctLabels, AreOrderedByValueThenByWord) {
  EXPECT_THAT(distinct_labels({"10", "b", "9", "a", "b", "-1", "1x"}),
              ElementsAre("-1", "9", "10", "1x", "a", "b"));
}

}  // namespace
}  // namespace multihead::text
