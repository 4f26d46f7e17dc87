// Scaled dot-product attention on tensors: differentiable, with every option, in O(T) memory.
#pragma once

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

/// out = dropout(softmax(softcap(score_mod(scale · query·(key + relative_key)ᵀ)) + biases, over the keys the
/// mask allows and the sink, if any)) · (value + relative_value).
///
/// With options.normalise other than softmax the weights are score_mod(scores with all terms), or the scores
/// themselves, over their sum, the sum of their absolute values, or nothing.
///
/// Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> [B, H, Tq, Dv];
///           H % Hkv == 0, query head h reads key head h / (H / Hkv). Sizes may be 0 except D. Layout::bthd
///           swaps H and T in all of them.
/// Dtypes    f32, f64, bf16, f16, the same for all three; scores and softmax of 16-bit inputs are f32. While
///           an Autocast is alive f32 inputs are rounded to bf16.
///           bias, alibi_slopes, relative tables and sinks are f64 with f64 inputs, else f32, or of the type of
///           16-bit inputs.
/// Strides   any; a tensor whose last axis is not contiguous is copied. The output's memory has the order of
///           axes of the query's, so that a [B, T, H, D] view in gives a [B, T, H, Dv] view out.
/// Gradient  query, key, value, bias, alibi_slopes, relative tables, sinks and what the score function captured
///           (16-bit inputs get f32 gradients), from the output, options.lse and what options.capture receives
/// Memory    O(Tq + Tk) per head beyond inputs and output, forward and backward; the gradient of a relative_key
///           or relative_value takes its own size for each head in work and (Tq + 128)·D per thread besides
/// Rows      without any allowed key give 0 and no gradient, see EmptyRow. What the mask excludes is never
///           read into a result: NaN there does not spread.
/// Throws    ShapeError, DtypeError, ValueError
/// Source    Vaswani et al. 2017, eq. 1; Dao 2023 (FlashAttention-2) for the backward
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

/// Self-attention on the output of one projection: qkv [B, T, (H + 2·Hkv)·D] -> [B, T, H·D], without copies
/// in either direction: the backward writes one packed gradient. Otherwise as attention().
Tensor attention_packed(const Tensor& qkv, const PackedHeads& heads, const AttentionOptions& options = {},
                        const ScoreMod& score_mod = {});

/// Sequences of different lengths, packed without padding: query [N, H, D], key [M, Hkv, D],
/// value [M, Hkv, Dv] -> [N, H, Dv]. Sequence s has the query rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]) and
/// the key rows [cu_seqlens_k[s], cu_seqlens_k[s + 1]) (i64 or i32 [S + 1], non-decreasing, from 0 to N or M)
/// and sees nothing of the others.
///
/// The batch axis of masks and biases is the sequence; their query and key axes count from the sequence's own
/// start and, if not 1, have the size of the longest. options.lse is [H, N]; a capture has the shape of the
/// padded batch, zeros outside.
Tensor attention_ragged(const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

struct AttentionPart {
  Tensor out;  ///< [..., Dv]
  Tensor lse;  ///< [...], natural logarithm
};

/// Attention over the union of two disjoint key sets from the attention over each; a sink counts in one of
/// them. f32 or f64. Gradient: out and lse of both.
AttentionPart merge_attention(const AttentionPart& a, const AttentionPart& b);

}  // namespace multihead
