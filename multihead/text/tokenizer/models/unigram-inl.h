// The unigram language model of SentencePiece. Private to text/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/text/tokenizer/models/bpe-inl.h"

namespace multihead::text {

/// The score of a token that no cut makes: Marian's other side has it.
inline constexpr double kNeverCut = -1e9;

/// A unigram language model (Kudo 2018): the most probable cut of a text into tokens.
class UnigramTable {
 public:
  UnigramTable() = default;
  /// The first tokens have scores; `unk` is their unknown one, if any.
  /// Special ones are never made of plain text.
  UnigramTable(const std::vector<std::string>& tokens, std::span<const double> scores, int32_t unk,
               const std::vector<bool>& is_special = {});
  /// A piece that cuts a text as tokens do, but has no id.
  void add_without_id(std::string_view piece, double score);

  /// Calls `use` on the tokens' bytes in order; id -1: unknown characters in a row, -2: a piece without id.
  /// Time: linear in the text for tokens of bounded length.
  void cut(std::string_view text, FunctionRef<void(std::string_view piece, int32_t id)> use) const;

  /// Calls use(length, number) on every piece that begins at `at`, the shortest first; pieces without id have
  /// the numbers after the ids.
  template <class Use>
  void each_match(std::string_view text, size_t at, Use&& use) const {
    int32_t node = 0;
    for (size_t end = at; end < text.size();) {
      const int32_t* child =
          children_.find(PairMap<int32_t>::key(node, static_cast<unsigned char>(text[end++])));
      if (child == nullptr) return;
      node = *child;
      const int32_t number = token_at_[static_cast<size_t>(node)];
      if (number >= 0) use(end - at, static_cast<size_t>(number));
    }
  }

 private:
  void add(std::string_view piece, size_t number);

  PairMap<int32_t> children_;      // (node, byte) -> node
  std::vector<int32_t> token_at_;  // of a node; -1: none
  std::vector<double> scores_;     // by id, then of pieces without
  size_t ids_ = 0;
  int32_t unk_ = -1;
  double unknown_ = 0;  // the score of an unknown character
};

}  // namespace multihead::text
