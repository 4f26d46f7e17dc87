// A tokenizer's tokens by their bytes, and which of them may come next in a language.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/grammar/language.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

/// A set of tokens, a bit each.
class TokenSet {
 public:
  explicit TokenSet(size_t tokens = 0) : words_((tokens + 63) / 64, 0) {}
  void add(int32_t token) { words_[static_cast<size_t>(token) / 64] |= uint64_t{1} << token % 64; }
  bool has(int32_t token) const {
    const auto at = static_cast<size_t>(token);
    return at / 64 < words_.size() && (words_[at / 64] >> at % 64 & 1) != 0;
  }
  void add(const TokenSet& other);
  bool is_empty() const;
  /// Sets the logits of all other tokens to -inf.
  void mask(std::span<float> logits) const;
  bool operator==(const TokenSet&) const = default;

 private:
  std::vector<uint64_t> words_;
};

/// Special tokens have no bytes here: they are not text.
class TokenTrie {
 public:
  /// Throws ValueError for a tokenizer whose tokens are not pieces of the text (WordPiece). `first`: tokens as they
  /// stand at the beginning of a text, where SentencePiece leaves out a space.
  explicit TokenTrie(const text::Tokenizer& tokenizer, bool first = false);

  size_t tokens() const { return bytes_.size(); }
  const std::string& bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }
  /// The tokens whose bytes may come next, whole.
  TokenSet allowed(text::grammar::Walker& walker, int32_t state) const;

 private:
  struct Node {
    uint8_t byte = 0, depth = 0;
    int32_t token = -1;
    uint32_t end = 0;  // behind the node's subtree
  };
  using Tree = std::vector<Node>;  // in the order of a walk, parents first
  static constexpr size_t kLongestPlain = 32;

  Tree tree_of(const std::vector<int32_t>& sorted);
  void walk(const Tree& tree, text::grammar::Walker& walker, int32_t state, TokenSet& set) const;

  std::vector<std::string> bytes_;
  std::vector<int32_t> twin_;  // another token of the same bytes, or -1
  Tree all_, special_;         // special_: without those of plain_
  /// Tokens of up to so many characters that stand for themselves in a JSON string, whichever they are: most of a
  /// vocabulary, which need not be walked.
  std::vector<TokenSet> plain_;
};

/// Both kinds of a tokenizer's tries; the last few are kept.
struct TokenTries {
  std::shared_ptr<const TokenTrie> rest, first;
};
TokenTries token_tries(const text::Tokenizer& tokenizer);

}  // namespace multihead
