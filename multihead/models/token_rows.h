// Token sequences of any lengths without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/rotary.h"

namespace multihead::models {

/// Token sequences of any lengths, concatenated without padding.
struct TokenRows {
  Tensor tokens;      ///< [N] i64
  Tensor cu_seqlens;  ///< [S + 1] i64: sequence s has the tokens [cu_seqlens[s], cu_seqlens[s + 1])
  Tensor types = {};  ///< [N] i64; undefined: all 0
  /// [S] i64: the first tokens of each sequence, which its tokens attend to; undefined: all. Encoders alone
  /// have it, for queries of ColBERT, whose added tokens none attends to.
  Tensor attended = {};

  static TokenRows of(std::span<const std::vector<int32_t>> sequences,
                      std::span<const std::vector<int32_t>> types = {});
  int64_t sequences() const { return cu_seqlens.numel() - 1; }
  /// Throws ShapeError or ValueError naming `who` unless the three fit each other and each sequence has 1 to
  /// `longest` tokens.
  void check(const char* who, int64_t longest) const;
  /// Position of every token in its sequence, counted from `first`: [N] i64.
  Tensor places(int64_t first = 0) const;
  /// Tokens of the longest sequence.
  int64_t longest() const;
};

/// The angles [1, N, R/2] of tokens at these places, from those of the places 0, 1 …
RotaryTable rotary_at(const RotaryTable& table, const Tensor& places);

}  // namespace multihead::models
