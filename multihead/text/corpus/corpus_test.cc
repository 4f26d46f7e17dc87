#include "multihead/text/corpus/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/testing/files.h"

namespace multihead::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CorpusFileTest : public ::testing::Test {
 protected:
  CorpusFileTest() {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("corpus_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
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
  const auto io = [&](const fs::path& path) { return message_of<IoError>([&] { read_text(path); }); };
  const auto format = [&](const std::string& bytes) {
    return message_of<FormatError>([&] { read_text(put("bad", bytes)); });
  };
  EXPECT_THAT(io(folder_ / "none"), HasSubstr("none\": No such file or directory"));
  EXPECT_THAT(io(folder_), HasSubstr("it is a folder"));
  EXPECT_THAT(io("/dev/zero"), HasSubstr("regular file"));
  EXPECT_THAT(format(""), HasSubstr("the file is empty"));
  EXPECT_THAT(format("\xEF\xBB\xBF"), HasSubstr("empty"));
  EXPECT_THAT(format(std::string("ab\nc\0d", 6)), HasSubstr("NUL byte at offset 4 (line 2)"));
  EXPECT_THAT(format("\xFF\xFEh"), HasSubstr("this is UTF-16; make it plain text in UTF-8 first (iconv"));
  EXPECT_THAT(format("\x1F\x8B\x08"), HasSubstr("this is compressed (gzip); make it plain text"));
  EXPECT_THAT(format("PK\x03\x04"), HasSubstr("this is a ZIP archive"));
  EXPECT_THAT(message_of<FormatError>([&] { check_plain("\xFE\xFF\x00h", "stdin"); }),
              HasSubstr("stdin: this is UTF-16"));
  EXPECT_THAT(format("one\ntwo\xE2\x82\n"),
              HasSubstr("not valid UTF-8: byte \"\\xe2\" at offset 7 (line 2)"));
}

TEST_F(CorpusFileTest, ReadsPairs) {
  const ParallelText pairs = read_pairs(put("p.tsv", "a b\tc\r\n\xC3\xA9\td e"));
  EXPECT_THAT(pairs.source, ::testing::ElementsAre("a b", "\xC3\xA9"));
  EXPECT_THAT(pairs.target, ::testing::ElementsAre("c", "d e"));
  // Files that editors leave are no part of the data.
  for (const char* bytes : {"a\tb\nc\td\n\n", "\xEF\xBB\xBF\r\na\tb\r\n\r\nc\td\r\n", "a\tb\n  \nc\td"}) {
    const ParallelText same = read_pairs(put("same.tsv", bytes));
    EXPECT_THAT(same.source, ::testing::ElementsAre("a", "c")) << bytes;
    EXPECT_THAT(same.target, ::testing::ElementsAre("b", "d")) << bytes;
  }
  const auto error = [&](const std::string& bytes) {
    return message_of<FormatError>([&] { read_pairs(put("bad.tsv", bytes)); });
  };
  EXPECT_THAT(error("a\tb\nc\n"), HasSubstr("line 2 must have two columns, source and target, got 1"));
  EXPECT_THAT(error("a\tb\tc\n"), HasSubstr("line 1 must have two columns, source and target, got 3"));
  EXPECT_THAT(error("a\tb\n\nc\n"), HasSubstr("line 3 must have two columns, source and target, got 1"));
  EXPECT_THAT(error("a\tb\rc\td\r"), HasSubstr("its lines end in CR alone"));
  EXPECT_EQ(read_pairs(put("one.tsv", "a\tb\r")).target.size(), 1u);
  EXPECT_THAT(error("\n \n\r\n"), HasSubstr("no rows"));
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
    EXPECT_THAT(message_of<ValueError>([&] { split_corpus("abcdefghij", {.validation = share}); }),
                HasSubstr("share in (0, 1)"));
  EXPECT_THAT(message_of<ValueError>([] { split_corpus("abc", {.blocks = 0}); }),
              HasSubstr("blocks must be >= 1"));
  EXPECT_THAT(message_of<ValueError>([] { split_corpus("abc"); }), HasSubstr("too short"));
  EXPECT_THAT(message_of<ValueError>([] {  // at once
                split_corpus("abcdefghij", {.blocks = std::numeric_limits<int64_t>::max()});
              }),
              HasSubstr("too short"));
  EXPECT_THAT(message_of<ValueError>([] { split_corpus("abc", {.validation = 0.5, .blocks = 3}); }),
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
    return message_of<FormatError>([&] { TokenFile::open(put("x.tokens", bytes)); });
  };
  EXPECT_NO_THROW(TokenFile::open(path));
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(open(damaged), "") << at;
    EXPECT_NE(open(whole.substr(0, at)), "") << at;
  }
  EXPECT_THAT(open(whole.substr(0, 63)), HasSubstr("at least 64 bytes, got 63"));
  EXPECT_THAT(open("text" + whole), HasSubstr("does not start with MHTOKENS"));
  EXPECT_THAT(open(whole + "x"), HasSubstr("53 tokens of 2 bytes expected after the header, got 107 bytes"));
  std::string version = whole;
  version[8] = 2;
  EXPECT_THAT(open(version), HasSubstr("version 2"));
  EXPECT_THAT(open(""), HasSubstr("got 0"));
  EXPECT_THROW(TokenFile::open(folder_ / "none"), IoError);
  EXPECT_THROW(TokenFile::open(folder_), IoError);
}

TEST_F(CorpusFileTest, ATokenFileThatIsCutShortWhileOpenIsAnError) {
  for (const int64_t vocab : {65536, 1 << 20}) {
    const fs::path path = folder_ / "t.tokens";
    TokenFileWriter writer(path, vocab, 5);
    writer.append(counting(40'000));
    writer.finish();
    const TokenFile file = TokenFile::open(path);
    fs::resize_file(path, 64 + 1000);
    std::vector<int32_t> tokens(100);
    file.tokens().copy(0, tokens);
    EXPECT_EQ(tokens, counting(100));
    const std::string error = message_of<IoError>([&] { file.tokens().copy(30'000, tokens); });
    EXPECT_THAT(error, HasSubstr("t.tokens"));
    EXPECT_THAT(error, HasSubstr("it ends at byte"));
    EXPECT_THROW(file.tokens().sub(30'000, 100)[7], IoError);
    EXPECT_THROW(file.tokens().each_piece([](int64_t, std::span<const int32_t>) {}), IoError);
  }
}

TEST_F(CorpusFileTest, PiecesOfATextAreTheText) {
  const std::string mark = "\xEF\xBB\xBF";
  const Tokenizer bpe = Tokenizer::train_bpe("a cat and a dog saw a river. ", {.vocab_size = 270});
  for (const std::string& text :
       {std::string("a"), std::string(3000, 'x'),
        std::string("a cat and a dog ") + std::string(900, 'y') + " saw a river and one cat",
        mark + "a dog a dog"}) {
    const fs::path path = put("t.txt", text);
    for (const uint64_t size : {1, 2, 7, 300, 5000}) {
      TextPieces pieces(path, bpe, size);
      std::string all;
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < pieces.count(); ++i) {
        const std::string piece = pieces.read(pieces.range(i));
        const std::vector<int32_t> more = bpe.encode(piece, {.add_template = false});
        ids.insert(ids.end(), more.begin(), more.end());
        all += piece;
      }
      EXPECT_EQ(all, read_text(path)) << size;
      EXPECT_EQ(ids, bpe.encode(all, {.add_template = false})) << size;
    }
  }
  EXPECT_THAT(message_of<FormatError>([&] { TextPieces(put("e.txt", mark), bpe); }),
              HasSubstr("byte order mark"));
  TextPieces bad(put("b.txt", "a cat\na dog \xFF"), bpe, 4);
  EXPECT_THAT(message_of<FormatError>([&] {
                for (int64_t i = 0; i < bad.count(); ++i) bad.read(bad.range(i));
              }),
              HasSubstr("line 2"));
}

TEST_F(CorpusFileTest, AListOfTokenFilesIsOneCorpus) {
  const auto write = [&](const char* name, int count, int first, uint64_t fingerprint = 5) {
    TokenFileWriter writer(folder_ / name, first == 30 ? 70'000 : 1000, fingerprint);
    std::vector<int32_t> tokens = counting(count);
    for (int32_t& token : tokens) token += first;
    writer.append(tokens);
    writer.finish();
    return (folder_ / name).string();
  };
  const std::vector<std::string> names = {write("a", 20, 0), write("b", 10, 20), write("empty", 0, 0),
                                          write("c", 30, 30)};
  const fs::path list = folder_ / "list";
  TokenFiles::write_list(list, names);
  EXPECT_TRUE(TokenFiles::is_one(list) && TokenFiles::is_one(names[0]));
  EXPECT_THAT(read_file(list), ::testing::EndsWith(" c\n"));  // beside the list
  const TokenFiles files = TokenFiles::open(list);
  files.verify();
  EXPECT_EQ(files.tokens().size(), 60);
  for (const auto& [begin, size] : {std::pair{0, 60}, {19, 12}, {5, 3}, {30, 30}, {59, 1}}) {
    std::vector<int32_t> got(static_cast<size_t>(size)), sub(got.size());
    files.tokens().copy(begin, got);
    files.tokens().sub(begin, size).sub(0, size).copy(0, sub);
    for (int i = 0; i < size; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], begin + i);
    EXPECT_EQ(got, sub);
  }
  const TokenFiles one = TokenFiles::open(names[0]);
  EXPECT_EQ(one.tokens().size(), 20);
  EXPECT_NE(one.checksum(), files.checksum());

  const std::string text = read_file(list);
  const auto error = [&](const std::string& content) {
    return message_of<FormatError>([&] { TokenFiles::open(put("other", content)); });
  };
  EXPECT_THAT(error(text + "nonsense\n"), HasSubstr("line 6: expected 16 hexadecimal digits"));
  EXPECT_THAT(error(text.substr(0, 23)), HasSubstr("no files"));
  std::string changed = text;
  changed[24] = changed[24] == '0' ? '1' : '0';
  EXPECT_THAT(error(changed), HasSubstr("line 2: \"" + names[0] + "\" has the checksum"));
  const std::string strange = write("d", 5, 0, 6);
  EXPECT_THAT(message_of<FormatError>([&] {
                TokenFiles::write_list(list, {names[0], strange});
              }),
              HasSubstr("another tokenizer"));
  EXPECT_EQ(read_file(list), text);
  const std::string line = checksum_text(TokenFile::open(strange).checksum()) + " " + strange + "\n";
  EXPECT_THAT(error(text + line), HasSubstr("another tokenizer"));
  std::string damaged = read_file(names[3]);
  damaged.back() ^= 1;
  put("c", damaged);  // which the header does not show
  const TokenFiles again = TokenFiles::open(list);
  again.verify(0, 2);
  EXPECT_THAT(message_of<FormatError>([&] { again.verify(1, 2); }), HasSubstr("/c: the tokens are corrupt"));
  EXPECT_THROW(TokenFiles::write_list(list, {}), ValueError);
  EXPECT_THROW(TokenFiles::write_list(list, {(folder_ / "none").string()}), IoError);
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
