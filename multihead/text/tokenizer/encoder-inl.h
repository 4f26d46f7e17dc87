// From text to tokens. Private to text/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {

/// Where tokens lie, and the spellings of those that are not called what their ids are: of added tokens the
/// text with the white space that they swallow, of unigram's unknown ones the piece.
struct Places {
  std::vector<TokenSpan> spans = {};
  std::vector<std::string> spellings = {};
};

/// Appends the tokens of texts, without template, to `ids`, and where they lie to `places`, if there are any.
class Encoder {
 public:
  Encoder(const Tokenizer::Model& model, std::vector<int32_t>& ids, Places* places)
      : model_(model),
        ids_(ids),
        spans_(places != nullptr ? &places->spans : nullptr),
        spellings_(places != nullptr ? &places->spellings : nullptr) {}

  void text(std::string_view text, bool parse_special);

 private:
  struct Cached {
    size_t begin, size;  // in ids_
  };
  static constexpr size_t kCachedPieces = 1 << 16, kCachedBytes = 64;

  void given_text(std::string_view text, size_t begin, bool parse_special);
  void normal_text(std::string_view text, bool parse_special, bool is_first);
  void cut(std::string_view text, std::span<const CutStep> steps, bool is_first);
  /// use() on the changed text, as if it were the part of the text around it that begins at `place`.
  template <class Use>
  void inside(const Rewritten& changed, const char* place, Use&& use);

  void piece(std::string_view piece);
  void make_tokens(std::string_view piece);
  void characters(std::string_view text);
  void most_probable(std::string_view piece);
  void word(std::string_view word);
  void whole(std::string_view word);
  bool put_whole(std::string_view token, std::string_view text);
  void merge_bytes(std::string_view piece);
  void merge_characters(std::string_view piece);
  bool put_bytes(std::string_view text, bool each_its_own);
  void put_unknown(std::string_view text);
  void put(int32_t id, std::string_view text, bool is_added = false);
  /// The last token is called so.
  void spell(std::string_view text);
  /// The last token stands for this as well.
  void extend(std::string_view text);

  const Tokenizer::Model& model_;
  std::vector<int32_t>& ids_;
  std::vector<TokenSpan>* spans_;
  std::vector<std::string>* spellings_;
  const char* base_ = nullptr;  // spans are counted from here
  std::string_view given_;
  // Words repeat: the ids of a piece seen before are copied from where they are in the output.
  std::unordered_map<std::string_view, Cached> cache_;
};

}  // namespace multihead::text
