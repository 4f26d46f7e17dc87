// What a decoder remembers while it generates: a value that the caller owns, copies and reorders.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/core/busy.h"
#include "multihead/core/tensor.h"

namespace multihead::nn {

/// Projected (and rotated) keys and values of one layer: [B, Hkv, capacity, D]. Row b holds lengths[b]
/// tokens, the rest is undefined. Cross-attention fills it once from the encoder's output.
struct KvCache {
  Tensor key, value;
};

/// Keys and values of every layer and the number of tokens that each row of the batch has seen.
///
/// Rows are independent: they may hold different numbers of tokens, and the logits of a row do not depend on
/// its neighbours. Copies are independent and cheap: they share memory until one of them is written to.
/// Threads may share a model, each with a state of its own: a call on a state that another call is moving on
/// throws ValueError and changes nothing.
///
/// A ring (window > 0) is for models whose tokens see `window` keys at most: what nobody will see again makes
/// room, so that memory and time per token stay the same however long the text gets. It drops whole blocks of
/// keys of the attention kernel (256), which leaves every bit of the results as a full state has them and
/// costs up to 255 tokens beside the window. The field's name; the bytes lie in order, without a seam.
struct DecodeState {
  std::vector<KvCache> layers;
  /// Keys and values of the encoder's output, per layer; empty in a decoder-only model. One row may serve
  /// several consecutive rows of the state, as the hypotheses of one sentence do in beam search.
  std::vector<KvCache> cross;
  std::vector<int64_t> cross_lengths;  ///< valid encoder tokens per row of `cross`
  std::vector<int64_t> lengths;        ///< tokens per row; the position of the next one
  /// Ring: tokens per row that were dropped, the position of the first one that is held; otherwise 0.
  std::vector<int64_t> starts;
  int64_t capacity = 0;     ///< tokens that fit per row (ring: at a time)
  int64_t window = 0;       ///< ring: keys that a token sees, itself included; 0: no ring
  mutable BusyFlag in_use;  ///< held by the call that moves the state on, or copies or saves it

  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  /// Rows of the state per row of `cross` (1 without).
  int64_t group() const;
  /// Tokens held per row: lengths - starts.
  std::vector<int64_t> held() const;
  /// Ring: tokens that a call may add to a row whatever it holds; otherwise what the longest row leaves.
  int64_t room() const;
  /// Drops what a ring need not hold any longer where row b would not take counts[b] more tokens. The caller
  /// holds in_use. Throws ValueError if they do not fit even then, before anything has changed.
  void make_room(std::span<const int64_t> counts, const Busy& held);

  /// Row i becomes what row rows[i] was: beam search, and batches that shrink or grow. Tokens that do not
  /// move are not copied. With `cross`, rows must stay in whole groups. Throws ValueError, and then nothing
  /// has changed.
  void reorder(std::span<const int64_t> rows);
  /// Every row `times` times in a row; `cross` is shared by them. Throws ValueError unless times >= 1.
  void repeat(int64_t times);
  /// Drops the tokens of every row past `length`. Throws ValueError where a ring has dropped keys that the
  /// next token would see; then nothing has changed.
  void truncate(int64_t length);
  /// The row forgets everything. Throws ValueError unless the batch has it.
  void clear(int64_t row);
  /// A copy; what it shares is copied when either side goes on.
  DecodeState fork() const;
  size_t bytes() const;

 private:
  void reorder_layers(std::span<const int64_t> rows);
};

/// Room for `capacity` tokens per row.
struct DecodeStateOptions {
  int64_t num_layers = 0, batch = 1, num_kv_heads = 0, head_dim = 0, value_head_dim = 0, capacity = 0;
  /// The model's, or bf16 under a model of f32: half the memory; queries, keys and values are rounded.
  Dtype dtype = Dtype::f32;
  int64_t window = 0;  ///< > 0: a ring; its capacity is at least ring_capacity(window, 1)
};
/// Tokens that a ring holds per row for calls of up to `chunk` tokens: window + chunk + 254.
int64_t ring_capacity(int64_t window, int64_t chunk);
DecodeState make_decode_state(const DecodeStateOptions& options);
/// Bytes of the keys and values of that state, before it is made; linear in batch and capacity.
size_t decode_state_bytes(const DecodeStateOptions& options);

/// Writes `counts[b]` new tokens of key and value [B, Hkv, T, D] behind the first `lengths[b]` ones, in the
/// cache's dtype. Throws ValueError if they do not fit, before anything is written.
void append(KvCache& cache, const Tensor& key, const Tensor& value, std::span<const int64_t> lengths,
            std::span<const int64_t> counts);

}  // namespace multihead::nn
