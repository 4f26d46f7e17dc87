// The decoder's cache during generation: a value that the caller owns, copies and reorders.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/threads/busy.h"

namespace multihead::nn {

/// Cache dtype: 8 bits per number and a scale per head and token, in the format of to_int8_rows().
inline constexpr Dtype kInt8Cache = Dtype::i32;

/// A tensor that an own attention keeps: [B, heads, capacity, dim] if it grows, with a row's tokens as in KvCache; else
/// [B, heads, rows, dim], which each call replaces.
struct OwnCache {
  std::string name;
  Tensor values;
  bool grows = true;
};
struct OwnCacheSpec {
  std::string name;
  int64_t heads = 1, dim = 1;
  int64_t rows = 0;  ///< 0: it grows
};

/// Projected (and rotated) keys and values of one layer: [B, Hkv, capacity, D], of kInt8Cache [..., D / 4 +
/// 1]. Row b holds lengths[b] tokens, the rest is undefined. Cross-attention fills it once from the encoder's
/// output.
struct KvCache {
  Tensor key, value;
  std::vector<OwnCache> own = {};  ///< of an own attention (nn/own_attention.h), which has no key and value
};

/// Keys and values of every layer and the number of tokens in each row of the batch.
///
/// Rows are independent: they may hold different numbers of tokens, and the logits of a row do not depend on
/// its neighbours. Copies are independent and cheap: they share memory until one of them is written to.
/// Threads may share a model, each with its own state: a call on a state in use by another call throws
/// ValueError and changes nothing.
///
/// A ring (window > 0) is for models whose tokens see at most `window` keys: keys that no later token will
/// see are dropped, so memory and time per token are constant for any length of text. Whole blocks of the
/// attention kernel (256 keys) are dropped, which keeps results bitwise equal to a full state's and holds up
/// to 255 tokens beyond the window. Despite the name, the keys are contiguous in memory.
struct DecodeState {
  std::vector<KvCache> layers;
  /// Keys and values of the encoder's output, per layer; empty in a decoder-only model. One row may serve
  /// several consecutive rows of the state, as for the hypotheses of one sentence in beam search.
  std::vector<KvCache> cross;
  std::vector<int64_t> cross_lengths;  ///< valid encoder tokens per row of `cross`
  std::vector<int64_t> lengths;        ///< tokens per row; the position of the next one
  /// Ring: tokens dropped per row, which is the position of the first one held; otherwise 0.
  std::vector<int64_t> starts;
  int64_t capacity = 0;     ///< tokens that fit per row (ring: at a time)
  int64_t window = 0;       ///< ring: sliding window in keys, the token included; 0: no ring
  mutable BusyFlag in_use;  ///< held by a call that extends, copies or saves the state

  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  /// Rows of the state per row of `cross` (1 without).
  int64_t group() const;
  /// Tokens held per row: lengths - starts.
  std::vector<int64_t> held() const;
  /// Ring: tokens a call may always add to a row; otherwise the room left by the longest row.
  int64_t room() const;
  /// Drops keys a ring no longer needs if row b has no room for counts[b] more tokens. The caller holds
  /// in_use. Throws ValueError if they still do not fit, before anything has changed.
  void make_room(std::span<const int64_t> counts, const Busy& held);

  /// Replaces row i by the former row rows[i]: for beam search, and batches that shrink or grow. Unmoved
  /// tokens are not copied. With `cross`, rows must stay in whole groups. Throws ValueError before anything
  /// has changed.
  void reorder(std::span<const int64_t> rows);
  /// Repeats every row `times` times; the copies share `cross`. Throws ValueError unless times >= 1.
  void repeat(int64_t times);
  /// Drops the tokens of every row beyond `length`. Throws ValueError, before anything has changed, if a ring
  /// has dropped keys that the next token would see.
  void truncate(int64_t length);
  /// Truncates one row. What an own attention carries cannot go back, but to the beginning.
  void truncate(int64_t row, int64_t length);
  /// Copies the first `tokens` tokens of row `row` of another state of the same model into row `to`, whose
  /// contents are lost. Throws ValueError, before anything has changed, if there are fewer, if they do
  /// not fit, or for a part of a ring.
  void put(int64_t to, const DecodeState& from, int64_t row, int64_t tokens);
  /// Empties the row. Throws ValueError unless the batch has it.
  void clear(int64_t row);
  /// A copy; shared memory is copied on write.
  DecodeState fork() const;
  size_t bytes() const;

 private:
  void check_truncation(int64_t row, int64_t length) const;
  void shorten(int64_t row, int64_t length);
  void reorder_layers(std::span<const int64_t> rows);
};

/// Room for `capacity` tokens per row.
struct DecodeStateOptions {
  std::vector<int64_t> kv_heads = {};  ///< of each layer
  int64_t batch = 1, head_dim = 0, value_head_dim = 0, capacity = 0;
  /// The model's dtype, or bf16 for an f32 model: half the memory; queries, keys and values are rounded. Or
  /// kInt8Cache for an f32 or bf16 model: a quarter; keys and values are rounded. Head sizes are then
  /// multiples of 4.
  Dtype dtype = Dtype::f32;
  int64_t window = 0;  ///< > 0: a ring; its capacity is at least ring_capacity(window, 1)
  std::vector<std::vector<OwnCacheSpec>> own = {};  ///< of each layer, or none

  /// Whether a tensor is carried from call to call, so that a part of a row cannot be taken.
  bool carries() const;
};
/// Tokens that a ring holds per row for calls of up to `chunk` tokens: window + chunk + 254.
int64_t ring_capacity(int64_t window, int64_t chunk);
DecodeState make_decode_state(const DecodeStateOptions& options);
/// Size in bytes of the keys and values of such a state; linear in batch and capacity.
size_t decode_state_bytes(const DecodeStateOptions& options);

/// Writes `counts[b]` new tokens of key and value [B, Hkv, T, D] after the first `lengths[b]` ones, in the
/// cache's dtype. Throws ValueError if they do not fit, before anything is written.
void append(KvCache& cache, const Tensor& key, const Tensor& value, std::span<const int64_t> lengths,
            std::span<const int64_t> counts);

}  // namespace multihead::nn
