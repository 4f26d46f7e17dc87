// What SentencePiece's tokenizers do to a text, step by step, as tokenizer.json describes it. Private to
// text/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/parallel.h"
#include "multihead/text/bpe-inl.h"
#include "multihead/text/normalize-inl.h"

namespace multihead::text {

/// SentencePiece's table of normalisation ("precompiled_charsmap"): a trie of what is replaced (Yata's double
/// array) and the replacements. Any bytes are safe.
class CharsMap {
 public:
  /// Throws ValueError for bytes that are no such table.
  explicit CharsMap(std::string bytes);
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;
  uint32_t unit(size_t index) const;

  std::string bytes_;
  size_t trie_units_ = 0, texts_begin_ = 0;
};

struct NormalStep {
  enum class Kind : uint8_t {
    unicode,        ///< a Unicode form
    charsmap,       ///< a CharsMap
    prepend,        ///< `text` in front, unless there is nothing
    replace,        ///< every `text` by `with`
    squeeze,        ///< two and more spaces by `with`
    strip,          ///< white space at the ends
    lowercase,      ///< each character
    strip_accents,  ///< drops all marks
  };
  Kind kind = Kind::unicode;
  Normalizer form = Normalizer::none;
  std::string text = {}, with = {};
  bool left = true, right = true;
  std::shared_ptr<const CharsMap> map = {};
};

std::string apply_steps(const std::vector<NormalStep>& steps, std::string_view text);

/// Spaces become a visible mark, and the text is cut in front of it.
struct Metaspace {
  enum class Prepend : uint8_t { always, first, never };
  std::string mark = "\xE2\x96\x81";  // U+2581
  Prepend prepend = Prepend::always;  ///< the mark in front of a text, of the first of all, of none
  bool cuts = true;
  bool words_first = false;  ///< cuts at white space and drops it, before anything else

  /// Calls `use` on every piece of a text; `is_first`: it begins the caller's text. Pieces die with the call.
  void each_piece(std::string_view text, bool is_first, FunctionRef<void(std::string_view)> use) const;

 private:
  void each_marked(std::string_view text, bool is_first, FunctionRef<void(std::string_view)> use) const;
};

/// A unigram language model (Kudo 2018): the most probable cut of a text into tokens.
class UnigramTable {
 public:
  UnigramTable() = default;
  /// The first tokens have scores; `unk` is their unknown one, if any.
  UnigramTable(const std::vector<std::string>& tokens, std::span<const double> scores, int32_t unk);

  /// Calls `use` on the tokens' bytes in order, unknown characters in runs (`is_known` false). Time: linear
  /// in the text for tokens of bounded length.
  void cut(std::string_view text, FunctionRef<void(std::string_view piece, int32_t id)> use) const;

 private:
  PairMap<int32_t> children_;      // (node, byte) -> node
  std::vector<int32_t> token_at_;  // of a node; -1: none
  std::vector<double> scores_;     // by id
  int32_t unk_ = -1;
  double unknown_ = 0;  // the score of an unknown character
};

/// What decode() makes of the tokens' texts.
struct DecodeStep {
  enum class Kind : uint8_t {
    replace,        ///< `text` by `with` in every token
    byte_fallback,  ///< "<0x41>" is the byte
    strip,          ///< up to `count` of `text` in front of the whole
    metaspace,      ///< marks are spaces; none in front of the first token if `count`
  };
  Kind kind = Kind::replace;
  std::string text = {}, with = {};
  int64_t count = 0;
};

/// The byte that "<0xAB>" stands for, or -1.
int byte_of_token(std::string_view token);

}  // namespace multihead::text
