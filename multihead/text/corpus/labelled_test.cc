#include "multihead/text/corpus/labelled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;

TEST(DistinctLabels, AreOrderedByValueThenByWord) {
  EXPECT_THAT(distinct_labels({"10", "b", "9", "a", "b", "-1", "1x"}),
              ElementsAre("-1", "9", "10", "1x", "a", "b"));
}

TEST(LabelsIn, AreBetweenCommasOrInAList) {
  EXPECT_THAT(labels_in(" a , b c", "here"), ElementsAre("a", "b c"));
  EXPECT_THAT(labels_in("[\"a, b\", \" c \", 7]", "here"), ElementsAre("a, b", "c", "7"));
  EXPECT_THAT(labels_in("[]", "here"), ElementsAre());
  EXPECT_THAT(labels_in("[net]", "here"), ElementsAre("[net]"));  // a name
  EXPECT_THAT(labels_in("[ \"a\", \"b\" ]", "here"), ElementsAre("a", "b"));
  EXPECT_THAT(labels_in("[ ]", "here"), ElementsAre());
  for (const char* cell :
       {"a,,b", "a,", "", "[\"a\", \"\"]", "[\"a\", {}]", "['a', 'b']", "[0, 1, 0]", "[\"a\", \"a\"]"}) {
    EXPECT_THROW(labels_in(cell, "here"), FormatError) << cell;
  }
}

}  // namespace
}  // namespace multihead::text
