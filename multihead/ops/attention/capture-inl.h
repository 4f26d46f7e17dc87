// Weights and summaries out of the fused path. Internal to ops; users fill in AttentionCapture.
#pragma once

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// Throws ValueError for heads, rows or top_k outside the problem; called before anything is computed.
void check_capture(const BoundAttention& bound, const AttentionCapture& capture);

/// Fills in the results, from operands in the type of the arithmetic.
void fill_capture(const BoundAttention& bound, const kernels::AttentionInput& in, const kernels::Operand& lse,
                  AttentionCapture& capture);

}  // namespace multihead::detail
