#include "multihead/text/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

template <class Error, class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class CorpusFileTest : public testing::Test {
 protected:
  CorpusFileTest() {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("corpus_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~CorpusFileTest() override { fs::remove_all(folder_); }

  fs::path put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  static std::string get(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }

  fs::path folder_;
};

std::vector<int32_t> counting(int64_t size) {
  std::vector<int32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST_F(CorpusFileTest, ReadsTextWithoutByteOrderMark) {
  EXPECT_EQ(read_text(put("a", "h\xC3\xA9llo\n")), "h\xC3\xA9llo\n");
  EXPECT_EQ(read_text(put("b", "\xEF\xBB\xBFx")), "x");
  EXPECT_EQ(read_text(put("c", "x\xFFy"), {.require_utf8 = false}), "x\xFFy");
}

TEST_F(CorpusFileTest, BadFilesSayWhatIsWrong) {
  const auto io = [&](const fs::path& path) { return error_of<IoError>([&] { read_text(path); }); };
  const auto format = [&](const std::string& bytes) {
    return error_of<FormatError>([&] { read_text(put("bad", bytes)); });
  };
  EXPECT_THAT(io(folder_ / "none"), HasSubstr("none: cannot open: No such file or directory"));
  EXPECT_THAT(io(folder_), HasSubstr("expected a file, got a directory"));
  EXPECT_THAT(io("/dev/zero"), HasSubstr("regular file"));
  EXPECT_THAT(format(""), HasSubstr("the file is empty"));
  EXPECT_THAT(format("\xEF\xBB\xBF"), HasSubstr("empty"));
  EXPECT_THAT(format(std::string("ab\nc\0d", 6)), HasSubstr("NUL byte at offset 4 (line 2)"));
  EXPECT_THAT(format("\xFF\xFEh"), HasSubstr("UTF-16"));
  EXPECT_THAT(format("one\ntwo\xE2\x82\n"),
              HasSubstr("not valid UTF-8: byte \"\\xe2\" at offset 7 (line 2)"));
}

TEST_F(CorpusFileTest, ReadsPairs) {
  const ParallelText pairs = read_pairs(put("p.tsv", "a b\tc\r\n\xC3\xA9\td e"));
  EXPECT_THAT(pairs.source, testing::ElementsAre("a b", "\xC3\xA9"));
  EXPECT_THAT(pairs.target, testing::ElementsAre("c", "d e"));
  const auto error = [&](const std::string& bytes) {
    return error_of<FormatError>([&] { read_pairs(put("bad.tsv", bytes)); });
  };
  EXPECT_THAT(error("a\tb\nc\n"), HasSubstr("line 2 must have two columns, source TAB target, got 1"));
  EXPECT_THAT(error("a\tb\tc\n"), HasSubstr("line 1 must have two columns, source TAB target, got 3"));
  EXPECT_THAT(error("a\tb\n\nc\td\n"), HasSubstr("line 2 must have two columns, source TAB target, got 0"));
  EXPECT_THAT(error("a\t\n"), HasSubstr("line 1 has an empty column"));
  EXPECT_THAT(error("\tb\n"), HasSubstr("line 1 has an empty column"));
  EXPECT_THAT(error(""), HasSubstr("empty"));
}

TEST(SplitCorpusTest, TheLastTenth) {
  std::string text(1009, 'a');
  const TextSplit split = split_corpus(text);
  ASSERT_EQ(split.train.size(), 1u);
  ASSERT_EQ(split.validation.size(), 1u);
  EXPECT_EQ(split.train[0].size(), 908u);
  EXPECT_EQ(split.validation[0].data(), text.data() + 908);
  EXPECT_EQ(split.validation[0].size(), 101u);
}

TEST(SplitCorpusTest, BlocksCoverTheTextOnceAndKeepCharactersWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += i % 3 ? "\xE7\x8C\xAB" : "\xC3\xA9";
  for (int64_t blocks : {1, 2, 3, 7, 50}) {
    const TextSplit split = split_corpus(text, {.validation = 0.2, .blocks = blocks});
    ASSERT_EQ(std::ssize(split.train), blocks);
    ASSERT_EQ(std::ssize(split.validation), blocks);
    const char* at = text.data();
    size_t held_out = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      for (const std::string_view part : {split.train[i], split.validation[i]}) {
        EXPECT_EQ(part.data(), at);
        EXPECT_NE(part[0] & 0xC0, 0x80);
        at += part.size();
      }
      held_out += split.validation[i].size();
    }
    EXPECT_EQ(at, text.data() + text.size());
    EXPECT_NEAR(static_cast<double>(held_out), 0.2 * static_cast<double>(text.size()), 3.0 * blocks);
  }
}

TEST(SplitCorpusTest, BadOptions) {
  for (double share : {0.0, 1.0, -0.1, 1.5, std::nan("")})
    EXPECT_THAT(error_of<ValueError>([&] { split_corpus("abcdefghij", {.validation = share}); }),
                HasSubstr("share in (0, 1)"));
  EXPECT_THAT(error_of<ValueError>([] { split_corpus("abc", {.blocks = 0}); }),
              HasSubstr("blocks must be >= 1"));
  EXPECT_THAT(error_of<ValueError>([] { split_corpus("abc"); }), HasSubstr("too short"));
  EXPECT_THAT(error_of<ValueError>([] { split_corpus("abc", {.validation = 0.5, .blocks = 3}); }),
              HasSubstr("too short"));
  const TextSplit bytes = split_corpus("\x80\x80\x80\x80\x80\x80\x80\x80\x80");  // not UTF-8: cut anywhere
  EXPECT_EQ(bytes.train[0].size(), 8u);
}

TEST_F(CorpusFileTest, TokenFilesKeepTokens) {
  std::mt19937 rng(2);
  for (int64_t vocab : {1, 256, 65536, 65537, 1 << 30}) {
    for (int64_t size : {0, 1, 7, 8, 9, 1009}) {
      std::vector<int32_t> tokens(size);
      for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % vocab);
      if (size > 1) tokens[1] = static_cast<int32_t>(vocab - 1);
      const fs::path path = folder_ / "t.tokens";
      TokenFileWriter writer(path, vocab, 77);
      const auto half = std::span(tokens).first(size / 2);
      writer.append(half);
      writer.append(std::span(tokens).subspan(size / 2));
      EXPECT_EQ(writer.finish(), size);
      const TokenFile file = TokenFile::open(path);
      EXPECT_EQ(file.size(), size);
      EXPECT_EQ(file.vocab_size(), vocab);
      EXPECT_EQ(fs::file_size(path), 64u + size * (vocab <= 65536 ? 2 : 4));
      std::vector<int32_t> back(size, -1);
      file.tokens().copy(0, back);
      EXPECT_EQ(back, tokens);
      for (int64_t i = 0; i < size; ++i) EXPECT_EQ(file.tokens()[i], tokens[i]);
      EXPECT_NO_THROW(file.check_tokenizer(77));
      EXPECT_THROW(file.check_tokenizer(78), ValueError);
    }
  }
}

TEST_F(CorpusFileTest, AnUnfinishedTokenFileLeavesNothing) {
  const fs::path path = put("t.tokens", "old");
  {
    TokenFileWriter writer(path, 100, 0);
    writer.append(counting(50));
    EXPECT_THROW(writer.append(std::vector<int32_t>{3, 100}), ValueError);
    EXPECT_THROW(writer.append(std::vector<int32_t>{-1}), ValueError);
  }
  EXPECT_EQ(get(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_THROW(TokenFileWriter(folder_ / "no" / "t", 100, 0), IoError);
  EXPECT_THROW(TokenFileWriter(path, 0, 0), ValueError);
}

TEST_F(CorpusFileTest, EveryDamagedByteOfATokenFileIsFound) {
  const fs::path path = folder_ / "t.tokens";
  TokenFileWriter writer(path, 60, 5);
  writer.append(counting(53));
  writer.finish();
  const std::string whole = get(path);
  const auto open = [&](const std::string& bytes) {
    return error_of<FormatError>([&] { TokenFile::open(put("x.tokens", bytes)); });
  };
  EXPECT_EQ(open(whole), "no error");
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(open(damaged), "no error") << at;
    EXPECT_NE(open(whole.substr(0, at)), "no error") << at;
  }
  EXPECT_THAT(open(whole.substr(0, 63)), HasSubstr("at least 64 bytes, got 63"));
  EXPECT_THAT(open("text" + whole), HasSubstr("does not start with MHTOKENS"));
  EXPECT_THAT(open(whole + "x"), HasSubstr("53 tokens of 2 bytes expected behind the header, got 107 bytes"));
  std::string version = whole;
  version[8] = 2;
  EXPECT_THAT(open(version), HasSubstr("version 2"));
  EXPECT_THAT(open(""), HasSubstr("got 0"));
  EXPECT_THROW(TokenFile::open(folder_ / "none"), IoError);
  EXPECT_THROW(TokenFile::open(folder_), IoError);
}

TEST_F(CorpusFileTest, WritesTheTokensOfATextInPieces) {
  std::string text;
  for (int i = 0; text.size() < (size_t{1} << 24) + 100000; ++i)
    text += "word" + std::to_string(i % 977) + " and\n";
  const Tokenizer tokenizer =
      Tokenizer::train_bpe(std::string_view(text).substr(0, 100000), {.vocab_size = 300});
  const fs::path path = folder_ / "t.tokens";
  const int64_t count = write_tokens(path, text, tokenizer);
  const TokenFile file = TokenFile::open(path);
  file.check_tokenizer(tokenizer.fingerprint());
  const std::vector<int32_t> expected = tokenizer.encode(text);
  ASSERT_EQ(count, std::ssize(expected));
  std::vector<int32_t> got(count);
  file.tokens().copy(0, got);
  EXPECT_TRUE(got == expected);
}

TEST(TokenDatasetTest, ARandomBatchIsAFunctionOfSeedAndStep) {
  const std::vector<int32_t> tokens = counting(1009);
  const TokenDataset a(tokens, {.batch = 5, .context = 7, .seed = 3}),
      b(tokens, {.batch = 5, .context = 7, .seed = 3});
  const TokenDataset other(tokens, {.batch = 5, .context = 7, .seed = 4});
  std::vector<int32_t> later = a.random(12).tokens;
  for (int64_t step = 0; step < 12; ++step) EXPECT_NE(b.random(step).tokens, later);
  EXPECT_EQ(b.random(12).tokens, later);  // the steps before do not matter
  EXPECT_NE(other.random(12).tokens, later);
  const TokenBatch batch = a.random(0);
  EXPECT_EQ(batch.rows, 5);
  ASSERT_EQ(batch.tokens.size(), 35u);
  for (int64_t i = 0; i < 35; ++i) {
    EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    if (i % 7 > 0) {
      EXPECT_EQ(batch.tokens[i], batch.tokens[i - 1] + 1);
    }
  }
}

TEST(TokenDatasetTest, RandomWindowsReachEveryOffsetEvenly) {
  constexpr int64_t kWindows = 11, kDraws = 22000;
  const std::vector<int32_t> tokens = counting(kWindows + 3);
  const TokenDataset data(tokens, {.batch = 10, .context = 3, .seed = 9});
  std::vector<int64_t> hits(kWindows);
  for (int64_t step = 0; step < kDraws / 10; ++step) {
    const TokenBatch batch = data.random(step);
    for (int64_t row = 0; row < 10; ++row) ++hits.at(batch.tokens[row * 3]);
  }
  double chi2 = 0;
  for (int64_t h : hits) chi2 += (h - 2000.0) * (h - 2000.0) / 2000.0;
  EXPECT_LT(chi2, 30);  // 10 degrees of freedom: 30 is passed once in a thousand
  const TokenDataset one(TokenView(tokens).sub(0, 4), {.batch = 2, .context = 3});
  EXPECT_EQ(one.random(5).targets, (std::vector<int32_t>{1, 2, 3, 1, 2, 3}));
}

TEST(TokenDatasetTest, SequentialCoversEveryTokenOnce) {
  for (int64_t size : {8, 14, 15, 16, 36, 71, 72, 1009}) {
    const std::vector<int32_t> tokens = counting(size);
    const TokenDataset data(tokens, {.batch = 5, .context = 7});
    int32_t next = 1;
    for (int64_t i = 0; i < data.sequential_batches(); ++i) {
      const TokenBatch batch = data.sequential(i);
      EXPECT_GE(batch.rows, 1);
      EXPECT_LE(batch.rows, 5);
      EXPECT_NE(batch.targets.at(7 * (batch.rows - 1)), kIgnoreTarget);  // no row is all padding
      EXPECT_EQ(std::ssize(batch.tokens), batch.rows * 7);
      for (size_t j = 0; j < batch.targets.size(); ++j) {
        if (batch.targets[j] == kIgnoreTarget) {
          EXPECT_EQ(batch.tokens[j], 0);
          continue;
        }
        EXPECT_EQ(batch.targets[j], next++);
        EXPECT_EQ(batch.tokens[j], batch.targets[j] - 1);
      }
    }
    EXPECT_EQ(next, size);
    EXPECT_THROW(data.sequential(data.sequential_batches()), ValueError);
  }
}

TEST(TokenDatasetTest, FillsMemoryOfTheCaller) {
  const std::vector<int32_t> tokens = counting(40);
  const TokenDataset data(tokens, {.batch = 3, .context = 5});
  std::vector<int32_t> x(15, -7), y(15, -7);
  EXPECT_EQ(data.random(2, x, y), 3);
  EXPECT_EQ(x, data.random(2).tokens);
  EXPECT_EQ(y, data.random(2).targets);
  std::fill(x.begin(), x.end(), -7);
  std::fill(y.begin(), y.end(), -7);
  EXPECT_EQ(data.sequential(2, x, y), 2);  // 39 targets: 15 + 15 + 9
  EXPECT_EQ(x[8], 38);
  EXPECT_EQ(y[8], 39);
  for (size_t i = 9; i < 15; ++i) EXPECT_EQ(y[i], kIgnoreTarget);
  EXPECT_THROW(data.random(0, std::span(x).first(14), y), ValueError);
}

TEST(TokenDatasetTest, BadOptions) {
  const std::vector<int32_t> tokens = counting(10);
  const auto make = [&](int64_t batch, int64_t context) {
    return error_of<ValueError>([&] { TokenDataset(tokens, {.batch = batch, .context = context}); });
  };
  EXPECT_THAT(make(0, 4), HasSubstr("batch must be >= 1, got 0"));
  EXPECT_THAT(make(4, 0), HasSubstr("context must be >= 1, got 0"));
  EXPECT_THAT(make(4, 10), HasSubstr("the text has 10 tokens; one window of context 10 needs 11"));
  EXPECT_EQ(make(4, 9), "no error");
  EXPECT_THAT(make(INT64_MAX, 9), HasSubstr("too large"));
  EXPECT_THROW(TokenDataset(tokens, {.batch = 1, .context = 4}).random(-1), ValueError);
}

TEST(TokenViewTest, PartOfAView) {
  const std::vector<int32_t> tokens = counting(10);
  const TokenView view(tokens);
  EXPECT_EQ(view.sub(3, 4)[0], 3);
  EXPECT_EQ(view.sub(10, 0).size(), 0);
  EXPECT_THROW(view.sub(3, 8), ValueError);
  EXPECT_THROW(view.sub(-1, 2), ValueError);
  EXPECT_THROW(view.sub(3, -1), ValueError);
}

}  // namespace
}  // namespace multihead::text
