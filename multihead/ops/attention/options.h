// Options of attention(). Every field has a default: write {.mask = causal(), .scale = 1.0f}.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/ops/attention/masks/mask.h"

namespace multihead {

/// Order of the axes of query, key, value and output.
enum class Layout {
  bhtd,  ///< [B, H, T, D]
  bthd,  ///< [B, T, H, D]
};

using kernels::CaptureStage;  // scores, probabilities, after_dropout
using kernels::EmptyRow;      // zero, uniform, nan, error

/// Looking inside: fill in what to capture, pass its address, read the tensors after the call. The output of
/// attention() does not change by one bit. Costs O(rows · Tk) memory, not O(Tq · Tk).
///
/// Under a tape the weights and summaries are results like the output, with gradients for the same tensors;
/// their backward runs plain loops over the rows concerned, about as long as capturing them took.
struct AttentionCapture {
  // What to capture.
  bool weights_wanted = true;
  CaptureStage stage = CaptureStage::probabilities;
  std::vector<int64_t> heads = {};       ///< empty: all
  std::vector<int64_t> query_rows = {};  ///< empty: all; -1 is the last
  bool key_mass_wanted = false;
  bool entropy_wanted = false;
  int64_t top_k = 0;

  // What was captured, f64 for f64 inputs, else f32. Probabilities sum to 1, with the sink's where there is
  // one.
  Tensor weights = {};      ///< [B, heads, query_rows, Tk]; excluded keys: score -inf, weight 0
  Tensor key_mass = {};     ///< [B, H, Tk]: sum over the queries of the probabilities
  Tensor entropy = {};      ///< [B, H, Tq], in nats
  Tensor top_weights = {};  ///< [B, H, Tq, top_k], largest first
  Tensor top_keys = {};     ///< i64, -1 where there are fewer keys
};

struct AttentionOptions {
  Mask mask = {};
  std::optional<double> scale =
      {};             ///< default 1/sqrt(head_dim); 0 and negative numbers are taken as they are
  float softcap = 0;  ///< c > 0: c · tanh(score / c), before biases and masks
  /// Added to the scores; broadcast to [B, H, Tq, Tk]; -inf excludes. This and the tensors below are f64 with
  /// f64 inputs, else f32, or of the type of 16-bit inputs.
  Tensor bias = {};
  Tensor alibi_slopes = {};  ///< [H] or [B, H]: - slope · |query position - key position|
  /// [H or 1, span]: + relative_bias[h, clamp(key position - query position + center, 0, span - 1)].
  Tensor relative_bias = {};
  /// [H or 1, span, D]: a vector per distance that the query meets with the key, scale · ⟨query[i], key[j] +
  /// relative_key[h, clamp(key position - query position + center, 0, span - 1)]⟩: Shaw et al. 2018's keys,
  /// and with a relative_bias labml's and Transformer-XL's scores.
  Tensor relative_key = {};
  int64_t relative_center = -1;  ///< of both tables; default (span - 1) / 2 of each
  /// [H]: an additional score in every row's softmax that belongs to no key; its weight is discarded. Zeros
  /// are softmax with 1 added to the sum (add_zero_attn). The log-sum-exp counts it, so that of a row without
  /// any key is the sink.
  Tensor sinks = {};
  float dropout_p = 0;  ///< on the probabilities; acts only if rng is given
  Rng* rng = nullptr;
  EmptyRow empty_row = EmptyRow::zero;
  Layout layout = Layout::bhtd;
  AttentionCapture* capture = nullptr;
  Tensor* lse = nullptr;  ///< receives the log-sum-exp of each row [B, H, Tq], a result like the output
  /// A bias of nothing but zeros and ones is refused, as it is a keep-mask in disguise; true lets it pass.
  bool allow_binary_bias = false;
};

/// How attention_packed() splits its last axis: num_heads queries, then num_kv_heads keys, then as many
/// values, each of one head size.
struct PackedHeads {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< 0: num_heads
};

}  // namespace multihead
