#include "multihead/text/corpus/labelled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "multihead/core/error.h"
#include "multihead/testing/files.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class LabelledTest : public testing::Test {
 protected:
  LabelledTexts read(const std::string& name, const std::string& content) {
    const std::string path = folder_ / name;
    std::ofstream(path) << content;
    return read_labelled(path);
  }
  void refuse(const std::string& name, const std::string& content, const char* why) {
    EXPECT_THAT([&] { read(name, content); }, ThrowsMessage<FormatError>(HasSubstr(why))) << content;
  }
  TemporaryFolder folder_;
};

TEST_F(LabelledTest, ColumnsAndObjectsSayTheSame) {
  const LabelledTexts columns = read("a.tsv", "good cat\tpos\r\nbad \"dog\"\tneg\n\tneg");
  EXPECT_THAT(columns.texts, ElementsAre("good cat", "bad \"dog\"", ""));
  EXPECT_THAT(columns.labels, ElementsAre("pos", "neg", "neg"));
  EXPECT_TRUE(columns.seconds.empty());
  const LabelledTexts objects = read("b.jsonl",
                                     "{\"text\":\"a\",\"label\":3,\"text_pair\":\"b\"}\n"
                                     "{\"text\":\"c\",\"label\":\"x\",\"text_pair\":\"d\",\"other\":1}\n");
  EXPECT_THAT(objects.seconds, ElementsAre("b", "d"));
  EXPECT_THAT(objects.labels, ElementsAre("3", "x"));
  EXPECT_THAT(read("a.tsv", "a\tb\t1\n").seconds, ElementsAre("b"));
  // Blank lines, which editors leave, are no rows.
  EXPECT_THAT(read("a.tsv", "\r\na\tb\n  \nc\td\n\n").labels, ElementsAre("b", "d"));
  EXPECT_THAT(read("b.jsonl", "{\"text\":\"a\",\"label\":2}\n\n").labels, ElementsAre("2"));
}

TEST_F(LabelledTest, WhatIsWrongIsNamedByItsLine) {
  refuse("a.tsv", "a\tb\nc\n", "line 2 must have two columns");
  refuse("a.tsv", "a\tb\n\nc\n",
         "line 3 must have two columns, text TAB label, or three, with a second text, got 1");
  refuse("a.tsv", "\n\n", "blank lines only");
  refuse("a.tsv", "a\tb\tc\td\n", "got 4");
  refuse("a.tsv", "a\tb\na\tb\tc\n", "line 2 has a second text, the lines before have none");
  refuse("a.tsv", "a\t\n", "line 1 has no label");
  refuse("b.jsonl", "{\"text\":\"a\"}\n", "\"label\" must be a string or an integer");
  refuse("b.jsonl", "{\"text\":1,\"label\":2}\n", "\"text\" must be a string");
  refuse("b.jsonl", "{\"text\":\"a\",\"label\":2}\n[]\n", "line 2");
  refuse("b.jsonl", "{\"text\":\"a\",", "line 1");
}

TEST(DistinctLabels, AreOrderedByValueThenByWord) {
  EXPECT_THAT(distinct_labels({"10", "b", "9", "a", "b", "-1", "1x"}),
              ElementsAre("-1", "9", "10", "1x", "a", "b"));
}

}  // namespace
}  // namespace multihead::text
