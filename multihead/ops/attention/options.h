// Options of attention(). Every field has a default: write {.mask = causal(), .scale = 1.0f}.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
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
using kernels::Normalise;     // softmax, sum, abs_sum, none, sparsemax, entmax15

/// Looking inside: fill in what to capture, pass its address, read the tensors after the call. The output of
/// attention() does not change by one bit. Costs O(rows · Tk) memory, not O(Tq · Tk).
///
/// Under a tape the weights and summaries are results like the output, with gradients for the same tensors;
/// their backward runs plain loops over the rows concerned, about as long as capturing them took.
struct AttentionCapture {
  // Requests.
  bool want_weights = true;
  CaptureStage stage = CaptureStage::probabilities;
  std::vector<int64_t> heads = {};       ///< empty: all
  std::vector<int64_t> query_rows = {};  ///< empty: all; -1 is the last, as of heads
  bool want_key_mass = false;
  bool want_entropy = false;
  int64_t top_k = 0;

  // Results, f64 for f64 inputs, else f32. Probabilities sum to 1, with the sink's where there is
  // one.
  Tensor weights = {};      ///< [B, heads, query_rows, Tk]; excluded keys: score -inf, weight 0
  Tensor key_mass = {};     ///< [B, H, Tk]: sum over the queries of the probabilities
  Tensor entropy = {};      ///< [B, H, Tq], in nats; of all probabilities, the sink's among them
  Tensor top_weights = {};  ///< [B, H, Tq, top_k], largest first
  Tensor top_keys = {};     ///< i64, -1 where there are fewer keys
};

struct AttentionOptions {
  Mask mask = {};
  std::optional<double> scale =
      {};              ///< default 1/sqrt(head_dim); 0 and negative numbers are taken as they are
  double softcap = 0;  ///< c > 0: c · tanh(score / c), before biases and masks
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
  /// [H or 1, span, Dv]: a vector per distance that joins the values, Σ_j p[i, j] · (value[j] + relative_value[h,
  /// clamp(key position - query position + center, 0, span - 1)]): the values of Shaw et al. 2018. Not with
  /// EmptyRow::uniform.
  Tensor relative_value = {};
  int64_t relative_center = -1;  ///< of all three tables, refused without any; -1: (span - 1) / 2 of each
  /// [H]: an additional score in every row's softmax that belongs to no key; its weight is discarded. Zeros
  /// are softmax with 1 added to the sum (add_zero_attn). The log-sum-exp counts it, so that of a row without
  /// any key is the sink.
  Tensor sinks = {};
  double dropout_p = 0;  ///< on the probabilities; acts only if rng is given
  Rng* rng = nullptr;
  /// Other than softmax: a key's weight is its score itself, or what score_mod makes of it, which then comes after
  /// softcap and biases; excluded keys have the weight 0. Rows are divided by the sum of their weights, by that of their
  /// absolute values, or not. A sum of 0 counts as a row without keys. Not with sinks, capture or uniform empty rows.
  /// sparsemax and entmax15 are the weights of these names: as a softmax, but most are 0. They take some forty passes
  /// over the keys to find each row's threshold, and no score_mod.
  Normalise normalise = Normalise::softmax;
  EmptyRow empty_row = EmptyRow::zero;
  Layout layout = Layout::bhtd;
  AttentionCapture* capture = nullptr;
  /// Receives the log-sum-exp of each row [B, H, Tq], a result like the output; without a softmax what the row was
  /// divided by, 0 for rows without keys; of sparsemax and entmax15 the thresholds.
  Tensor* lse = nullptr;
  /// A bias without a gradient that holds zeros and ones, both of them and nothing else, is refused: it is a keep-mask
  /// in disguise. True lets it pass.
  bool allow_binary_bias = false;
};

namespace detail {

/// The options that change scores or their softmax, by name. Keywords, gradients, token plans and tests read
/// these two lists, which are complete (nn/options_test.cc).
inline constexpr auto kScoreOptions =
    std::tuple(std::pair("softcap", &AttentionOptions::softcap), std::pair("bias", &AttentionOptions::bias),
               std::pair("alibi_slopes", &AttentionOptions::alibi_slopes),
               std::pair("relative_bias", &AttentionOptions::relative_bias),
               std::pair("relative_key", &AttentionOptions::relative_key),
               std::pair("relative_value", &AttentionOptions::relative_value),
               std::pair("relative_center", &AttentionOptions::relative_center),
               std::pair("sinks", &AttentionOptions::sinks));
inline constexpr auto kCallOptions = std::tuple(
    std::pair("mask", &AttentionOptions::mask), std::pair("scale", &AttentionOptions::scale),
    std::pair("dropout_p", &AttentionOptions::dropout_p), std::pair("rng", &AttentionOptions::rng),
    std::pair("normalise", &AttentionOptions::normalise),
    std::pair("empty_row", &AttentionOptions::empty_row), std::pair("layout", &AttentionOptions::layout),
    std::pair("capture", &AttentionOptions::capture), std::pair("lse", &AttentionOptions::lse),
    std::pair("allow_binary_bias", &AttentionOptions::allow_binary_bias));

/// f(name, member) for every option.
template <class F>
constexpr void for_each_option(F&& f) {
  std::apply([&](const auto&... option) { (f(option.first, option.second), ...); },
             std::tuple_cat(kScoreOptions, kCallOptions));
}

/// The tensors among the options of a score, in the same order: these get gradients.
inline constexpr auto kLearnedOptions = std::apply(
    [](const auto&... option) {
      using Learned = Tensor AttentionOptions::*;
      std::array<Learned, (size_t{std::is_convertible_v<decltype(option.second), Learned>} + ...)> all = {};
      size_t n = 0;
      const auto add = [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), Learned>) all[n++] = member;
      };
      (add(option.second), ...);
      return all;
    },
    kScoreOptions);
inline constexpr size_t kLearnedCount = kLearnedOptions.size();
constexpr size_t learned_index(Tensor AttentionOptions::*member) {
  size_t n = 0;
  while (kLearnedOptions[n] != member) ++n;
  return n;
}

/// The name of an option that has not its default and is not in `taken`; null: there is none.
const char* other_option(const AttentionOptions& options, std::span<const std::string_view> taken);

}  // namespace detail

/// The split of attention_packed()'s last axis: num_heads queries, then num_kv_heads keys, then as many
/// values, each of one head size.
struct PackedHeads {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< 0: num_heads
};

}  // namespace multihead
