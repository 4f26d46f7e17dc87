// The order of training windows.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/core/tensor/tensor.h"
#include "multihead/text/corpus/token_file.h"

namespace multihead::train {

/// Cuts a text of `tokens` tokens into windows of `context` inputs (plus the next token) and visits
/// every window once per epoch, with a new order and a new offset per epoch. A function of (seed, index)
/// only, so there is no state to save or shuffle.
class WindowOrder {
 public:
  /// Throws FormatError unless tokens > context.
  WindowOrder(int64_t tokens, int64_t context, uint64_t seed);

  int64_t windows_per_epoch() const { return windows_; }
  /// Position of the first token of the index-th window of the whole run.
  int64_t begin(int64_t index) const;

 private:
  int64_t context_, windows_, slack_;
  uint64_t seed_;
};

/// A pseudo-random permutation of [0, count): a Feistel network on Philox with cycle walking. `count` >= 1.
int64_t permuted(int64_t index, int64_t count, uint64_t seed, uint64_t round);

struct WindowBatch {
  Tensor tokens, targets;  ///< [B, T] i32; targets are the tokens one further
};

/// One row per entry of `begins`. Throws ValueError if a row would pass the end.
WindowBatch gather_windows(const text::TokenView& text, std::span<const int64_t> begins, int64_t context);

}  // namespace multihead::train
