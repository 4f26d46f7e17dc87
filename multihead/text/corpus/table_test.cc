#include "multihead/text/corpus/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "multihead/core/error.h"
#include "multihead/testing/files.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/text/corpus/judged.h"
#include "multihead/text/corpus/labelled.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class TableTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& content) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  TemporaryFolder folder_;
};

// The same two rows, written in every way.
TEST_F(TableTest, EveryFormatSaysTheSame) {
  const std::pair<const char*, const char*> files[] = {
      {"a.tsv", "good cat\t pos \r\nbad \"dog\"\tneg"},
      {"a.txt", "\xEF\xBB\xBFgood cat\tpos\n\n   \nbad \"dog\"\tneg\n\n"},
      {"b.tsv", "id\tLabel\ttext\n7\tpos\tgood cat\n8\tneg\tbad \"dog\"\n"},
      {"a.csv", "good cat,pos\n\"bad \"\"dog\"\"\",neg\n"},
      {"b.CSV", "\xEF\xBB\xBFlabel,text,id\r\npos,\"good cat\",1\r\n\r\nneg,\"bad \"\"dog\"\"\",2\r\n"},
      {"a.jsonl",
       "{\"text\":\"good cat\",\"label\":\"pos\",\"text_pair\":null}\n\n"
       "{\"label\":\"neg\",\"text\":\"bad \\\"dog\\\"\"}\n"},
      {"a.ndjson",
       "{\"sentence\":\"good cat\",\"label\":\"pos\"}\n{\"sentence\":\"bad "
       "\\\"dog\\\"\",\"label\":\"neg\"}"}};
  for (const auto& [name, content] : files) {
    const std::string path = put(name, content);
    for (const LabelledTexts& read :
         {read_labelled(path), read_texts(path, format_of(path, TableFormat::by_name, TableFormat::tsv))}) {
      EXPECT_THAT(read.texts, ElementsAre("good cat", "bad \"dog\"")) << name;
      EXPECT_THAT(read.labels, ElementsAre("pos", "neg")) << name;
      EXPECT_THAT(read.seconds, IsEmpty()) << name;
    }
  }
  EXPECT_THAT(read_labelled(put("b.tsv", "label\ttext\n1\ta\n\n2\tb\n")).lines, ElementsAre(2, 4));
}

TEST_F(TableTest, QuotesHoldCommasQuotesAndLines) {
  const LabelledTexts read = read_labelled(put("a.csv", "\"a,\nb\r\n\"\"c\"\"\",x\n,y\n5\" nail,\"z\"\n"));
  EXPECT_THAT(read.texts, ElementsAre("a,\nb\r\n\"c\"", "", "5\" nail"));
  EXPECT_THAT(read.labels, ElementsAre("x", "y", "z"));
  EXPECT_THAT(read.lines, ElementsAre(1, 4, 5));
}

// An empty text of a lone column is written so; its row had been lost.
TEST_F(TableTest, AQuotedBlankIsNoBlankLine) {
  const LabelledTexts read = read_texts(put("a.csv", "text\n\"a\"\n\"\"\n\n  \n\"  \"\nb\n"));
  EXPECT_THAT(read.texts, ElementsAre("a", "", "  ", "b"));
  EXPECT_THAT(read.lines, ElementsAre(2, 3, 6, 7));
  EXPECT_THAT([&] { read_labelled(put("a.csv", "a,b\n\"\"\n")); },
              ThrowsMessage<FormatError>(HasSubstr("line 2 must have two columns")));
}

// Quotes that csv and pandas write had been learned, and a header in quotes with them.
TEST_F(TableTest, TsvThatCsvHasQuotedIsRefused) {
  const std::pair<const char*, int> quoted[] = {{"\"text\"\t\"label\"\n\"a\"\t\"x\"\n", 1},
                                                {"\"id\"\t\"text\"\t\"label\"\n1\t\"a\"\t\"x\"\n", 1},
                                                {"\"a\"\t\"x\"\n\"b\"\t\"y\"\n", 1},
                                                {"text\tlabel\na\tx\n\"the \"\"red\"\" dog\"\ty\n", 3},
                                                {"a\tx\n\"b \"\"c\"\"\"\ty\n\"\"\"d\"\"\"\ty\n", 2},
                                                {"a\t\"[\"\"x\"\", \"\"y\"\"]\"\n", 1}};
  for (const auto& one : quoted) {
    EXPECT_THAT([&] { read_labelled(put("a.tsv", one.first)); },
                ThrowsMessage<FormatError>(HasSubstr(concat("line ", one.second, " looks quoted"))))
        << one.first;
  }
}

TEST_F(TableTest, QuotesOfATextAreReadInTsv) {
  for (const std::string text : {"\"Hello,\" he said \"twice\"", "\"Hello\"", "\"\"\"a\"\"\"", "\"\"",
                                 "\"\"\"\"", "\"", "\"a\" + \"\"", "5\" nail", "\"\"a\"\""}) {
    EXPECT_THAT(read_labelled(put("a.tsv", text + "\tx\n\"all\"\ty\n")).texts, ElementsAre(text, "\"all\""));
  }
  // A cell that csv would have quoted shows that it has not written the file.
  EXPECT_EQ(read_labelled(put("a.tsv", "\"a \"\"b\"\" c\"\tx\n5\" nail\ty\n")).texts[0], "\"a \"\"b\"\" c\"");
}

TEST_F(TableTest, NumbersAndTruthsAreLabelsAsTheyAreWritten) {
  EXPECT_THAT(read_labelled(put("a.jsonl",
                                "{\"text\":\"a\",\"label\":3}\n{\"text\":\"b\",\"label\":true}\n"
                                "{\"text\":\"c\",\"label\":1.5}\n"))
                  .labels,
              ElementsAre("3", "true", "1.5"));
}

// Other members had become names such as "[true]", and "[-1" and "2]".
TEST_F(TableTest, ListsOfLabelsHoldStringsAndIntegers) {
  const LabelledTexts read =
      read_labelled(put("a.jsonl",
                        "{\"text\":\"a\",\"labels\":[-1,2]}\n{\"text\":\"b\",\"labels\":[]}\n"
                        "{\"text\":\"c\",\"labels\":[\"x, y\"]}\n"));
  EXPECT_THAT(labels_in(read.labels[0], "f"), ElementsAre("-1", "2"));
  EXPECT_THAT(labels_in(read.labels[1], "f"), ElementsAre());
  EXPECT_THAT(labels_in(read.labels[2], "f"), ElementsAre("x, y"));
  for (const std::string list : {"[true]", "[null]", "[[\"a\"]]", "[{}]", "[1.5]", "[\"a\", false]"}) {
    EXPECT_THAT(
        [&] {
          read_labelled(
              put("a.jsonl", "{\"text\":\"a\",\"label\":[]}\n{\"text\":\"b\",\"label\":" + list + "}\n"));
        },
        ThrowsMessage<FormatError>(HasSubstr("line 2: a list of labels must hold strings or integers, got ")))
        << list;
  }
}

TEST_F(TableTest, TextsMayComeWithoutLabels) {
  EXPECT_THAT(read_texts(put("a.txt", "one\n\ntwo")).texts, ElementsAre("one", "", "two"));
  EXPECT_THAT(read_texts(put("a.csv", "text\n\"a\nb\"\n")).texts, ElementsAre("a\nb"));
  EXPECT_THAT(read_texts(put("a.tsv", "a\nb\n")).texts, ElementsAre("a", "b"));
  EXPECT_THAT(read_texts(put("a.jsonl", "{\"text\":\"a\",\"text_pair\":\"b\"}\n")).seconds, ElementsAre("b"));
  EXPECT_THAT(read_texts(put("a.txt", "a\tb\n"), TableFormat::lines).texts, ElementsAre("a\tb"));
  try {
    read_labelled(put("a.txt", "a\tb\n"), TableFormat::lines);
    FAIL() << "a line has no label";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("a line is one text, and these data have two columns, text and label"));
  }
  EXPECT_THAT([&] { read_texts(put("a.txt", "one\na\tb\n")); },
              ThrowsMessage<FormatError>(HasSubstr("line 2 has a TAB: give --format tsv")));
}

TEST_F(TableTest, PairsHaveNamesToo) {
  const ParallelText pairs = read_pairs(put("a.csv", "document,query\n\"d, e\",q\n"));
  EXPECT_THAT(pairs.source, ElementsAre("q"));
  EXPECT_THAT(pairs.target, ElementsAre("d, e"));
  EXPECT_THAT(read_pairs(put("a.jsonl", "{\"anchor\":\"a\",\"positive\":\"b\"}")).target, ElementsAre("b"));
}

TEST_F(TableTest, ColumnsThatNobodyReadsAreListed) {
  EXPECT_THAT(read_labelled(put("a.csv", "id,text,Label,a b\n1,t,l,x\n")).unused, ElementsAre("id", "a b"));
  EXPECT_THAT(
      read_labelled(put("a.jsonl",
                        "{\"text\":\"a\",\"label\":\"l\",\"id\":1}\n"
                        "{\"text\":\"a\",\"weight\":2,\"id\":2,\"label\":\"l\",\"text_pair\":null}\n"))
          .unused,
      ElementsAre("id", "weight"));
  EXPECT_THAT(read_judged(put("a.csv", "query,positive,title\na,b,c\n")).unused, ElementsAre("title"));
  EXPECT_THAT(read_pairs(put("a.csv", "source,target,\na,b,c\n")).unused, ElementsAre());  // pandas' index
  EXPECT_THAT(read_judged(put("a.csv", "query,positive,negative_score\na,b,c\n")).unused,
              ElementsAre("negative_score"));
  EXPECT_THAT(read_judged(put("a.jsonl", "{\"anchor\":\"a\",\"positive\":\"b\",\"negative_1\":null}")).unused,
              ElementsAre());
  EXPECT_THAT(read_labelled(put("a.tsv", "a\tb\n")).unused, ElementsAre());
  EXPECT_THAT(
      [&] { read_judged(put("a.csv", "anchor,positive,Negative_1,negative_2\na,b,c,d\n")); },
      ThrowsMessage<FormatError>(HasSubstr("column \"Negative_1\": a row has one negative document")));
  EXPECT_THAT([&] { read_judged(put("a.jsonl", "{\"anchor\":\"a\",\"query\":\"q\",\"positive\":\"b\"}")); },
              ThrowsMessage<FormatError>(HasSubstr("line 1 has \"query\" twice, once as \"anchor\"")));
}

TEST_F(TableTest, AnIndexWithoutANameIsRefused) {
  for (const char* content : {",review,sentiment\n0,a,good\n1,b,bad\n", "0,a,good\n1,b,bad\n"}) {
    EXPECT_THAT(
        [&] { read_labelled(put("a.csv", content)); },
        ThrowsMessage<FormatError>(HasSubstr("a.csv: the first column counts the rows, as pandas' index")));
    EXPECT_THAT([&] { read_judged(put("a.csv", content)); },
                ThrowsMessage<FormatError>(HasSubstr("counts the rows")));
  }
  EXPECT_THAT([&] { read_judged(put("a.tsv", "0\ta\tb\n1\tc\td\n2\te\tf\n")); },
              ThrowsMessage<FormatError>(HasSubstr("counts the rows")));
  EXPECT_THAT(read_labelled(put("a.csv", "0,a,good\n2,b,bad\n")).texts, ElementsAre("0", "2"));
  EXPECT_THAT(read_labelled(put("a.csv", "0,zero\n1,one\n")).texts, ElementsAre("0", "1"));
  EXPECT_THAT(read_labelled(put("a.csv", "text,text_pair,label\n0,a,b\n1,c,d\n")).texts,
              ElementsAre("0", "1"));
  EXPECT_THAT(read_labelled(put("a.csv", ",text,label\n0,a,good\n1,b,bad\n")).texts, ElementsAre("a", "b"));
}

// A word that is both a label and a column's name does not make a header of the first row.
TEST_F(TableTest, ALabelCalledTextIsNoHeader) {
  EXPECT_THAT(read_labelled(put("a.tsv", "an editor\ttext\na game\tgames\n")).labels,
              ElementsAre("text", "games"));
}

TEST_F(TableTest, WrongFilesAreNamedByTheirLine) {
  struct Case {
    const char *name, *content, *why;
  };
  const Case labelled[] = {
      {"a.tsv", "a\tb\nc\n", "line 2 must have two columns"},
      {"a.tsv", "a\tb\n\nc\n", "line 3 must have two columns, text and label, or three, with a second text"},
      {"a.tsv", "\n\n", "no rows"},
      {"a.tsv", "", "the file is empty"},
      {"a.tsv", "\xEF\xBB\xBF", "byte order mark"},
      {"a.tsv", "a\tb\tc\td\n", "got 4"},
      {"a.tsv", "a\tb\na\tb\tc\n", "line 2 has 3 columns, the lines before have 2"},
      {"a.tsv", "a\t\n", "line 1 has no label"},
      {"a.tsv", "a\t  \n", "line 1 has no label"},
      {"a.tsv", "text\tsection\na\tb\n", "line 1 looks like a header, of which a column is called \"text\""},
      {"a.tsv", "title\tlabel\na\tb\n", "it must have \"text\" and \"label\""},
      {"a.tsv", "text\ttext\tlabel\na\tb\tc\n", "names \"text\" twice"},
      {"a.tsv", "text\tlabel\na\n", "line 2 must have 2 columns, as the header has, got 1"},
      {"a.tsv", "text\tlabel\n", "no rows"},
      {"a.tsv", "a\tb\nc\xFF\td\n", "not valid UTF-8"},
      {"a.tsv", "\xFF\xFEz", "UTF-16"},
      {"a.csv", "a,b\n\"c,d\n", "line 2 opens a quote that never ends"},
      {"a.csv", "a,b\n\"c\" d,e\n", "line 2 has text behind a closing quote"},
      {"a.csv", "\"a\nb\",c\nd\n", "line 3 must have two columns"},
      {"a.csv", "a;b\n", "line 1 must have two columns"},
      {"a.csv", "text,label\na,b,c\n", "line 2 must have 2 columns"},
      {"a.csv", "\n\r\n", "no rows"},
      {"a.csv", "id,text,label,x\n1,a,,y\n", "line 2 has no label"},
      {"a.jsonl", "{\"text\":\"a\"}\n", "line 1 has no \"label\""},
      {"a.jsonl", "{\"text\":1,\"label\":2}\n", "line 1: \"text\" must be a string, got 1"},
      {"a.jsonl", "{\"text\":\"a\",\"label\":{}}\n", "\"label\" must be a string or a number, got {}"},
      {"a.jsonl", "{\"text\":\"a\",\"label\":null}\n", "line 1 has no \"label\""},
      {"a.jsonl", "{\"text\":\"a\",\"label\":2}\n[]\n", "line 2 must be an object, such as {\"text\""},
      {"a.jsonl", "{\"text\":\"a\",", "line 1"},
      {"a.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\",\"text_pair\":\"b\",\"label\":1}\n",
       "line 2 has a \"text_pair\", the lines before have none"},
      {"a.jsonl", "{\"text\":\"a\",\"text_pair\":\"b\",\"label\":1}\n{\"text\":\"a\",\"label\":1}\n",
       "line 2 has no \"text_pair\", the lines before have one"},
      {"a.jsonl", "a\tb\n", "line 1"},
      {"a.json", "[{\"text\":\"a\",\"label\":1}]", "call it .jsonl or give --format jsonl"}};
  for (const Case& c : labelled) {
    EXPECT_THAT([&] { read_labelled(put(c.name, c.content)); }, ThrowsMessage<FormatError>(HasSubstr(c.why)))
        << c.content;
  }
  const Case pairs[] = {{"a.tsv", "a\tb\tc\n", "line 1 must have two columns, source and target, got 3"},
                        {"a.tsv", "a\t\n", "line 1 has an empty column"},
                        {"a.tsv", "source\tx\na\tb\n", "looks like a header"},
                        {"a.csv", "a,b\n,c\n", "line 2 has an empty column"},
                        {"a.jsonl", "{\"query\":\"a\"}", "line 1 has no \"target\""},
                        {"a.jsonl", "{\"query\":\"a\",\"document\":5}", "\"document\" must be a string"},
                        {"a.jsonl", "{\"query\":\"a\",\"document\":\"\"}", "line 1 has an empty column"}};
  for (const Case& c : pairs) {
    EXPECT_THAT([&] { read_pairs(put(c.name, c.content)); }, ThrowsMessage<FormatError>(HasSubstr(c.why)))
        << c.content;
  }
  for (const char* name : {"a.jsonl", "a.csv", "a.json"}) {
    EXPECT_THAT([&] { read_corpus(put(name, "{}\n")); }, ThrowsMessage<FormatError>(HasSubstr(name)));
  }
  EXPECT_EQ(read_corpus(put("a.txt", "{}\n")), "{}\n");
}

TEST(SharedRows, AreCountedAndTheFirstIsShown) {
  EXPECT_EQ(shared_rows({{"a", "b"}}, {{"c"}}), "");
  EXPECT_THAT(shared_rows({{"a", "b"}}, {{"b", "c", "a"}}), HasSubstr("2 of 3 validation texts"));
  EXPECT_EQ(shared_rows({{"a"}, {"x"}}, {{"a"}, {"y"}}), "");
  EXPECT_THAT(shared_rows({{"a"}, {"x"}}, {{"a"}, {"x"}}), HasSubstr("the first is \"a\""));
}

}  // namespace
}  // namespace multihead::text
