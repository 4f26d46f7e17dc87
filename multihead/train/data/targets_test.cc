#include "multihead/train/data/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

using models::ProblemType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two places of one name would shift the numbers of all labels behind them.
TEST(Targets, AHeadWhoseNamesRepeatIsRefusedOnlyWhereItIsKept) {
  models::EncoderConfig known;
  known.head = models::EncoderHead::classification, known.labels = {"x", "x", "a", "b"}, known.num_labels = 4;
  for (const ProblemType problem : {ProblemType::single_label, ProblemType::multi_label}) {
    const text::LabelledTexts kept = {.texts = {"s", "t"}, .labels = {"a", "b"}, .lines = {1, 2}},
                              other = {.texts = {"s", "t"}, .labels = {"a", "c"}, .lines = {1, 2}};
    EXPECT_THAT([&] { read_targets(kept, {}, problem, known, false); },
                ThrowsMessage<FormatError>(HasSubstr("labels 0 and 1 of the model are both called \"x\"")));
    EXPECT_THAT(read_targets(other, {}, problem, known, false).names, ElementsAre("a", "c"));
  }
}

}  // namespace
}  // namespace multihead::train
