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

std::vector<std::string> warnings_of(const std::vector<std::string>& labels, bool has_names,
                                     ProblemType problem = ProblemType::single_label) {
  text::LabelledTexts data = {.labels = labels, .has_names = has_names};
  for (size_t i = 0; i < labels.size(); ++i)
    data.texts.push_back("t"), data.lines.push_back(std::ssize(data.lines) + 1);
  return read_targets(data, {}, problem, {}, false).warnings;
}

TEST(Targets, AFirstLineThatReadsLikeAHeaderIsNamed) {
  const std::vector<std::string> labels = {"sentiment", "good", "bad", "good", "bad"};
  const auto says = ElementsAre(
      HasSubstr("line 1 of the training data reads like a header: no other has the label \"sentiment\""));
  EXPECT_THAT(warnings_of(labels, false), says);
  EXPECT_THAT(warnings_of(labels, false, ProblemType::multi_label), says);
  EXPECT_THAT(warnings_of(labels, true), ElementsAre());
  EXPECT_THAT(warnings_of({"a", "b", "c", "b", "d"}, false), ElementsAre());  // c and d are as rare
  EXPECT_THAT(warnings_of({"a", "b", "c", "b", "c", "a"}, false), ElementsAre());
  EXPECT_THAT(warnings_of({"a", "b", "b"}, false), ElementsAre());
}

}  // namespace
}  // namespace multihead::train
