#include "multihead/text/corpus/labelled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(DistinctLabels, AreOrderedByValueThenByWord) {
  EXPECT_THAT(distinct_labels({"10", "b", "9", "a", "b", "-1", "1x"}),
              ElementsAre("-1", "9", "10", "1x", "a", "b"));
}

// A label with two places would be learned as one of them and judged as the other.
TEST(LabelIds, AreThePlacesOfNamesThatDiffer) {
  EXPECT_THAT(label_ids({"b", "a"}, "m"), ElementsAre(Pair("a", 1), Pair("b", 0)));
  EXPECT_THAT(
      [] {
        label_ids({"a", "x", "b", "x"}, "m");
      },
      ThrowsMessage<FormatError>(HasSubstr("m: the labels 1 and 3 of the model are both called \"x\"")));
}

TEST(LabelsIn, AreBetweenCommasOrInAList) {
  EXPECT_THAT(labels_in(" a , b c", "here"), ElementsAre("a", "b c"));
  EXPECT_THAT(labels_in("[\"a, b\", \" c \", 7]", "here"), ElementsAre("a, b", "c", "7"));
  EXPECT_THAT(labels_in("[]", "here"), ElementsAre());
  EXPECT_THAT(labels_in("[-1, 2]", "here"), ElementsAre("-1", "2"));
  for (const char* name : {"[net]", "[-a]", "[-]"}) EXPECT_THAT(labels_in(name, "here"), ElementsAre(name));
  EXPECT_THAT(labels_in("[ \"a\", \"b\" ]", "here"), ElementsAre("a", "b"));
  EXPECT_THAT(labels_in("[ ]", "here"), ElementsAre());
  for (const char* cell : {"a,,b", "a,", "", "[\"a\", \"\"]", "[\"a\", {}]", "[-1, 1.5]", "['a', 'b']",
                           "[0, 1, 0]", "[\"a\", \"a\"]"}) {
    EXPECT_THROW(labels_in(cell, "here"), FormatError) << cell;
  }
}

}  // namespace
}  // namespace multihead::text
