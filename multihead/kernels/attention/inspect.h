// Looking inside attention, and results of parts and of sinks after the forward pass.
#pragma once

#include "multihead/kernels/attention/attention.h"

namespace multihead::kernels {

/// weights[n * weights_stride + j] for row n and key j < key_count(batch): the final score (-inf where
/// excluded), the probability, or the probability after dropout. Not for bf16. Rows beyond
/// query_count(batch) are skipped. Probabilities are divided by the sum of their own row (and its sink): the
/// forward's log-sum-exp rounds scores in another order, which at scores of 10^5 is a factor.
void attention_capture(const AttentionProblem&, const ScoreTerms&, const AttentionInput&, const void* sinks,
                       CaptureStage stage, const CaptureRow* rows, int64_t count, void* weights,
                       int64_t weights_stride);

/// Summaries of the probabilities without the [Tq, Tk] matrix; null pointers are not computed.
/// Contiguous: key_mass [B, H, keys] (sum over queries), entropy [B, H, queries] (nats, with the sink's),
/// top_weights and top_keys [B, H, queries, top_k] (largest first; absent keys: weight 0, key -1).
struct CaptureSummary {
  void* key_mass = nullptr;
  void* entropy = nullptr;
  int64_t top_k = 0;
  void* top_weights = nullptr;
  int64_t* top_keys = nullptr;
  bool any() const { return key_mass || entropy || top_weights; }
};
void attention_summary(const AttentionProblem&, const ScoreTerms&, const AttentionInput&, const void* sinks,
                       const CaptureSummary&);

/// Gradients of what the two functions above wrote, laid out as that is; null pointers have none.
struct CaptureGradient {
  CaptureStage stage = CaptureStage::probabilities;
  const CaptureRow* rows = nullptr;  ///< those of `weights`
  int64_t count = 0, weights_stride = 0;
  const void* weights = nullptr;
  CaptureSummary summary;
};
/// Adds to the gradients of query, key, score terms and sinks (or null) that the backward has written, what
/// those of a capture bring: by plain loops, over the rows that have any.
void attention_capture_backward(const AttentionProblem&, const ScoreTerms&, const AttentionInput&,
                                const void* sinks, const CaptureGradient& from, const AttentionGradient& to,
                                void* d_sinks);

/// Merges two results over disjoint key sets: out and lse take the union's values. f32 or f64, contiguous
/// [rows, value_dim].
void attention_merge(Dtype dtype, int64_t rows, int64_t value_dim, void* out, void* lse,
                     const void* other_out, const void* other_lse);

/// The log-sum-exp of rows without any key becomes the sink, which is their whole sum: for the caller, after
/// the backward has got its copy, which finds those rows by -inf.
void attention_fill_empty_lse(const AttentionProblem&, const void* sinks, const Operand& lse);
/// d_sinks[h] = Σ over the rows of exp(sink - lse) · (d_lse - ⟨d_out, out⟩), in the order of the rows. d_out
/// has the arithmetic's type; d_lse the strides of lse, null if that had no use. Of rows without any key
/// d_lse alone is read.
void attention_sink_gradient(const AttentionProblem&, const void* sinks, const AttentionOutput&,
                             const Operand& d_out, const void* d_lse, void* d_sinks);

}  // namespace multihead::kernels
