// Weights and summaries out of the fused path. Internal to ops; users fill in AttentionCapture.
#pragma once

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// Throws ValueError for heads, rows or top_k outside the problem; called before anything is computed.
void check_capture(const BoundAttention& bound, const AttentionCapture& capture);

/// Fills in the results, from operands in the type of the arithmetic.
void fill_capture(const BoundAttention& bound, const kernels::AttentionInput& in, AttentionCapture& capture);

/// The members of AttentionCapture that have gradients.
inline constexpr Tensor AttentionCapture::*kCaptured[] = {
    &AttentionCapture::weights, &AttentionCapture::key_mass, &AttentionCapture::entropy,
    &AttentionCapture::top_weights};

/// Adds to the gradients `to` and to d_sinks (or null) what those of a capture's members bring: `gradients`
/// is that capture, with its tensors' gradients in their places, undefined where there is none.
void add_capture_gradients(const BoundAttention& bound, const kernels::AttentionInput& in,
                           const AttentionCapture& gradients, const kernels::AttentionGradient& to,
                           void* d_sinks);

}  // namespace multihead::detail
