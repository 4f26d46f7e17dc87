// The steps around a tokenizer's model, as tokenizer.json describes them: normalizer, pre-tokenizer, decoder.
// Private to text/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/text/tokenizer/pipeline/bert-inl.h"
#include "multihead/text/tokenizer/pipeline/normalize-inl.h"
#include "multihead/text/tokenizer/pipeline/split-inl.h"

namespace multihead::text {

/// SentencePiece's table of normalisation ("precompiled_charsmap"): a trie of what is replaced (Yata's double
/// array) and the replacements. Any bytes are safe.
class CharsMap {
 public:
  /// `longest`: everywhere the longest entry is replaced, as SentencePiece does it; else the shortest of a grapheme's,
  /// as Hugging Face's tokenizers do. Throws ValueError for bytes that are no such table.
  explicit CharsMap(std::string bytes, bool longest = false);
  /// Appends the text with everything replaced.
  void apply(std::string_view text, Rewritten& out) const;
  bool keeps(std::string_view text) const {
    Rewritten out(false);
    apply(text, out);
    return out.text == text;
  }

 private:
  struct Entry {
    size_t length;  // of what is replaced
    std::string_view with;
  };
  std::optional<Entry> entry(std::string_view text) const;
  void replace_longest(std::string_view text, Rewritten& out) const;
  uint32_t unit(size_t index) const;

  std::string bytes_;
  bool longest_ = false;
  size_t trie_units_ = 0, texts_begin_ = 0;
};

struct NormalStep {
  enum class Kind : uint8_t {
    unicode,        ///< a Unicode form
    bert,           ///< BERT's cleaning
    charsmap,       ///< a CharsMap
    prepend,        ///< `text` in front, unless there is nothing
    replace,        ///< every `text` by `with`
    replace_rule,   ///< every match of `rule` by `with`
    strip,          ///< white space at the ends
    lowercase,      ///< each character
    strip_accents,  ///< drops all marks
  };
  Kind kind = Kind::unicode;
  Normalizer form = Normalizer::none;
  BertCleaning cleaning = {};
  SplitRule rule = {};
  std::string text = {}, with = {};
  bool left = true, right = true;
  std::shared_ptr<const CharsMap> map = {};
};

/// The text after all steps, or nothing if none of them looked at it.
std::optional<Rewritten> apply_steps(const std::vector<NormalStep>& steps, std::string_view text,
                                     bool is_aligned);

/// Every `from` by `to`, which stands for the last byte that it replaces.
void replace_all(std::string_view text, std::string_view from, std::string_view to, Rewritten& out);

/// A step that cuts a text into pieces, or changes the pieces.
struct CutStep {
  enum class Kind : uint8_t {
    split,
    marks,         ///< spaces become a visible mark
    prefix_space,  ///< a space in front, unless there is one
  };
  enum class Prepend : uint8_t { always, first, never };

  Kind kind = Kind::split;
  SplitRule rule = {};
  std::string mark = "\xE2\x96\x81";  // U+2581
  Prepend prepend = Prepend::always;  ///< the mark before every piece, before the first, before none

  /// Rewrites a piece, unless it is only cut. `is_first`: it begins the text that was given.
  Rewritten changed(std::string_view piece, bool is_first, bool is_aligned) const;
};

/// A step of decode(), on a token's text or on the whole.
struct DecodeStep {
  enum class Kind : uint8_t {
    replace,        ///< `text` by `with`
    byte_fallback,  ///< "<0x41>" is the byte
    byte_level,     ///< the bytes that symbols stand for
    strip,          ///< up to `count` of `text` in front and `last_count` at the end
    metaspace,      ///< `text`, the mark, is a space; none before the first token if `count`
    word_pieces,    ///< a space in front, unless the token is the first or begins with `text`
    tidy,           ///< no spaces before punctuation
    word_end,       ///< `text` is a space; at the very end nothing
  };
  Kind kind = Kind::replace;
  std::string text = {}, with = {};
  int64_t count = 0, last_count = 0;
};

/// The byte that "<0xAB>" stands for, or -1.
int byte_of_token(std::string_view token);

}  // namespace multihead::text
