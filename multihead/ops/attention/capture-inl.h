// Weights and summaries out of the fused path. Internal to ops; users fill in AttentionCapture.
#pragma once

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// The operands of one call in the type of the arithmetic, last axis contiguous.
template <class T>
struct CaptureInput {
  kernels::AttentionInput<T> input;
  const T* lse = nullptr;
  kernels::Strides3 lse_strides;
};

/// Throws ValueError for heads, rows or top_k outside the problem; called before anything is computed.
void check_capture(const BoundAttention& bound, const AttentionCapture& capture);

/// Fills in the results. T = float or double.
template <class T>
void fill_capture(const BoundAttention& bound, const CaptureInput<T>& in, AttentionCapture& capture);

}  // namespace multihead::detail
