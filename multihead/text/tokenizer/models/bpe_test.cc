// Splitting, merging and learning below the tokenizer; time on hostile text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "multihead/core/error.h"
#include "multihead/testing/processor_time.h"
#include "multihead/text/tokenizer/models/bpe-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;

const SplitRule kGpt2{SplitRule::Kind::gpt2}, kLlama3{SplitRule::Kind::llama3};

std::vector<std::string> pieces(std::string_view text, std::vector<SplitRule> rules) {
  std::vector<std::string> out;
  split_text(text, rules, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

TEST(SplitTest, Gpt2) {
  const auto split = [](std::string_view text) { return pieces(text, {kGpt2}); };
  EXPECT_THAT(split("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(split("it's we'll DON'T"), ElementsAre("it", "'s", " we", "'ll", " DON", "'", "T"));
  EXPECT_THAT(split("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(split("a  \n b  "), ElementsAre("a", "  \n", " b", "  "));
  EXPECT_THAT(split("a\nb"), ElementsAre("a", "\n", "b"));
  EXPECT_THAT(split("x12!? 34"), ElementsAre("x", "12", "!?", " 34"));
  EXPECT_THAT(split("a\xFF\xFE b"), ElementsAre("a", "\xFF\xFE", " b"));  // invalid bytes are symbols
  EXPECT_THAT(split("e\xCC\x81t"), ElementsAre("e", "\xCC\x81", "t"));    // so are combining marks
  EXPECT_THAT(split(" \xC2\xA0x"), ElementsAre(" ", "\xC2\xA0", "x"));
  EXPECT_THAT(split(""), ElementsAre());
}

TEST(SplitTest, Llama3) {
  const auto split = [](std::string_view text) { return pieces(text, {kLlama3}); };
  EXPECT_THAT(split("Don'T .hello\tworld"), ElementsAre("Don", "'T", " .", "hello", "\tworld"));
  EXPECT_THAT(split("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(split("a.\n\nb"), ElementsAre("a", ".\n\n", "b"));
  EXPECT_THAT(split("a \n \n  b"), ElementsAre("a", " \n \n", " ", " b"));
  EXPECT_THAT(split("'\xC5\xBF"), ElementsAre("'\xC5\xBF"));  // the long s, whose capital is S
  EXPECT_THAT(pieces("1234", {{SplitRule::Kind::llama3, 1}}), ElementsAre("1", "2", "3", "4"));
}

TEST(SplitTest, RulesFollowOneAnother) {
  EXPECT_THAT(pieces("ab 12  3", {{SplitRule::Kind::each_digit}, kGpt2}),
              ElementsAre("ab", " ", "1", "2", "  ", "3"));
  EXPECT_THAT(pieces("ab 12  3", {{SplitRule::Kind::digit_runs}}), ElementsAre("ab ", "12", "  ", "3"));
  EXPECT_THAT(pieces("ab 12", {}), ElementsAre("ab 12"));
}

TEST(SplitTest, PiecesJoinToTheText) {
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += " \n'sl1.\xC3\xA9\xE2\x80\xFF"[rng() % 12];
    for (const auto& rules : std::vector<std::vector<SplitRule>>{
             {kGpt2}, {kLlama3}, {{SplitRule::Kind::each_digit}, kGpt2}, {{SplitRule::Kind::digit_runs}}}) {
      std::string joined;
      for (const std::string& piece : pieces(text, rules)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(UnicodeTest, ClassesAndUtf8) {
  EXPECT_EQ(char_class('a'), CharClass::letter);
  EXPECT_EQ(char_class('7'), CharClass::number);
  EXPECT_EQ(char_class('\v'), CharClass::space);
  EXPECT_EQ(char_class(0x1C), CharClass::other);  // a separator that Python's isspace takes and \s does not
  EXPECT_EQ(char_class(0x200B), CharClass::other);
  // Assigned since Unicode 15: a mark, a digit, a mark and a symbol.
  EXPECT_TRUE(is_word_character(0x897) && is_word_character(0x10D40) && is_word_character(0x1E5EE));
  EXPECT_FALSE(is_word_character(0x1CC00));
  EXPECT_EQ(char_class(0x3000), CharClass::space);
  EXPECT_EQ(char_class(0x2167), CharClass::number);   // VIII
  EXPECT_EQ(char_class(0x301), CharClass::other);     // combining acute
  EXPECT_EQ(char_class(0x2EBF0), CharClass::letter);  // Unicode 15.1
  EXPECT_EQ(char_class(0x1E5F1), CharClass::number);  // Unicode 16
  EXPECT_EQ(char_class(-1), CharClass::other);
  const auto valid = [](std::string_view text) { return find_invalid_utf8(text) == std::string_view::npos; };
  EXPECT_TRUE(valid("a\xC3\xA9\xF4\x8F\xBF\xBF"));
  for (const char* bad :
       {"\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8"})
    EXPECT_FALSE(valid(bad)) << quote(bad);
  EXPECT_EQ(find_invalid_utf8("ab\xC3"), 2u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(symbol_to_byte(byte_to_symbol(byte)), byte);
  EXPECT_EQ(byte_to_symbol(' '), 0x120);
  EXPECT_EQ(symbol_to_byte(' '), -1);
}

TEST(UnicodeTest, QuotesAreSafeToPrint) {
  EXPECT_EQ(quote("a\n\x1B[31m\xFF\xC3\xA9"), "\"a\\n\\u001b[31m\\xff\xC3\xA9\"");
  EXPECT_EQ(quote(std::string(90, 'x')), '"' + std::string(80, 'x') + "…\"");
}

// The definition: the pair of lowest rank, leftmost first, until no pair merges.
std::vector<int32_t> merge_by_definition(std::vector<int32_t> symbols, const std::vector<Merge>& merges) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  for (;;) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, place = i;
    }
    if (best == merges.size()) return symbols;
    symbols[place] = merges[best].result;
    symbols.erase(symbols.begin() + place + 1);
  }
}

TEST(MergeTableTest, EqualsTheDefinitionAtEveryLength) {
  std::mt19937 rng(13);
  for (int round = 0; round < 400; ++round) {
    // Ranks in random order: files from elsewhere need not list the parts of a token before it.
    std::vector<Merge> merges;
    for (int32_t id = 3; id < 40; ++id)
      merges.push_back({static_cast<int32_t>(rng() % id), static_cast<int32_t>(rng() % id), id});
    std::shuffle(merges.begin(), merges.end(), rng);
    const MergeTable table(merges);
    constexpr size_t kLengths[] = {0, 1, 2, 3, 31, 32, 33, 34, 67, 131};
    std::vector<int32_t> symbols(kLengths[round % std::size(kLengths)]);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(rng() % (1 + round % 3));
    std::vector<int32_t> merged = {-7};  // what comes before is left alone
    merged.insert(merged.end(), symbols.begin(), symbols.end());
    table.apply(merged, 1);
    EXPECT_EQ(merged[0], -7);
    merged.erase(merged.begin());
    EXPECT_EQ(merged, merge_by_definition(symbols, merges)) << "round " << round;
  }
}

// Counts every pair of every piece anew for each merge.
std::vector<std::string> learn_by_definition(const std::vector<std::string>& words, int64_t merges,
                                             int64_t min_frequency) {
  std::vector<std::vector<std::string>> split;
  std::map<std::string, int> order;  // ties go to the smaller ids: bytes by symbol, then tokens as they come
  std::vector<int> bytes(256);
  for (int i = 0; i < 256; ++i) bytes[i] = i;
  std::sort(bytes.begin(), bytes.end(), [](int a, int b) { return byte_to_symbol(a) < byte_to_symbol(b); });
  for (int b : bytes) order.emplace(std::string(1, static_cast<char>(b)), static_cast<int>(order.size()));
  for (const std::string& word : words) {
    split.emplace_back();
    for (char c : word) split.back().emplace_back(1, c);
  }
  std::vector<std::string> learnt;
  while (std::ssize(learnt) < merges) {
    std::map<std::pair<int, int>, int64_t> counts;
    std::map<int, std::string> name;
    for (const auto& [token, id] : order) name[id] = token;
    for (const auto& word : split)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{order[word[i]], order[word[i + 1]]}];
    std::pair<int, int> best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts)
      if (count > most) most = count, best = pair;
    if (most < min_frequency) break;
    const std::string left = name[best.first], right = name[best.second];
    for (auto& word : split)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] += right;
          word.erase(word.begin() + i + 1);
        }
    order.emplace(left + right, static_cast<int>(order.size()));
    learnt.push_back(left + right);
  }
  return learnt;
}

TEST(LearnTest, EqualsTheDefinition) {
  std::mt19937 rng(17);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> words;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      std::string word = " ";
      for (size_t n = 1 + rng() % 7; n > 0; --n) word += "abcde"[rng() % (2 + round % 4)];
      words.push_back(word);
      text += word;
    }
    const Tokenizer tokenizer =
        Tokenizer::train_bpe(text, {.vocab_size = 256 + 37, .min_frequency = 2, .special = {}});
    std::vector<std::string> learnt;
    for (int32_t id = 256; id < tokenizer.vocab_size(); ++id)
      learnt.push_back(tokenizer.decode(std::vector<int32_t>{id}));
    EXPECT_EQ(learnt, learn_by_definition(words, 37, 2)) << "round " << round;
  }
}

TEST(LearnTest, StopsWhenPairsRunOut) {
  const Tokenizer tokenizer = Tokenizer::train_bpe("ab ab", {.vocab_size = 4096, .min_frequency = 1});
  EXPECT_LT(tokenizer.vocab_size(), 262);
  EXPECT_EQ(tokenizer.encode("ab ab").size(), 2u);
}

TEST(LearnTest, NeverSpellsASpecialToken) {
  const Tokenizer tokenizer =
      Tokenizer::train_bpe("the the the", {.vocab_size = 300, .min_frequency = 1, .special = {.eos = "the"}});
  EXPECT_EQ(tokenizer.id("the"), 0);
  EXPECT_EQ(tokenizer.encode("the").size(), 2u);  // "t" "he"
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the the")), "the the");
  EXPECT_NO_THROW(Tokenizer::from_json(tokenizer.to_json()));
}

TEST(LearnTest, ReportsProgressAndMayBeStopped) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += " " + std::to_string(i * 7919);
  int64_t last = 0, total = 0;
  const auto progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done, total = all;
  };
  Tokenizer::train_bpe(text, {.vocab_size = 457, .progress = progress});
  EXPECT_EQ(last, 200);
  EXPECT_EQ(total, 200);
  const auto stop = [](int64_t, int64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(Tokenizer::train_bpe(text, {.vocab_size = 457, .progress = stop}), std::runtime_error);
}

TEST(LearnTest, SeveralTextsDoNotTouch) {
  const std::string_view texts[] = {"ab", "ab", "ab"};
  const Tokenizer tokenizer = Tokenizer::train_bpe(texts, {.vocab_size = 300, .min_frequency = 2});
  EXPECT_EQ(tokenizer.vocab_size(), 258);  // "ab", but never "ba" or "abab"
}

// 512 KB of one letter and the like in a tenth of a second each. A quadratic step would take minutes, so the
// bound can be generous to sanitizers.
TEST(HostileTextTest, TimeStaysNearLinear) {
  constexpr size_t kSize = size_t{1} << 19;
  std::mt19937 rng(1);
  std::string noise(kSize, '\0'), letters(kSize, '\0');
  for (char& c : noise) c = static_cast<char>(rng());
  for (char& c : letters) c = "etaoin"[rng() % 6];
  std::vector<std::string> texts = {std::string(kSize, 'a'),
                                    std::string(kSize, ' '),
                                    std::string(kSize, '7'),
                                    std::string(kSize, '\n'),
                                    noise,
                                    letters};
  for (const char* unit : {"\xCC\x81", "ab", " \n", "'s", "\xF0\x9F\x98\x80", "\x80"}) {
    texts.emplace_back();
    while (texts.back().size() < kSize) texts.back() += unit;
  }
  for (const std::string& text : texts) {
    const double time = testing::processor_seconds([&] {
      const Tokenizer tokenizer = Tokenizer::train_bpe(text, {.vocab_size = 400});
      const std::vector<int32_t> ids = tokenizer.encode(text);
      EXPECT_EQ(tokenizer.decode(ids), text);
    });
    EXPECT_LT(time, 20) << quote(text);
  }
}

}  // namespace
}  // namespace multihead::text
