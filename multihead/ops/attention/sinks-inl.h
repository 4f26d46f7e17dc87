// A score of no key in every row's softmax. Internal to ops.
#pragma once

#include "multihead/ops/attention/call-inl.h"

namespace multihead::detail {

/// Turns the output and log-sum-exp of the kernel into those of a softmax with one more score per row:
/// out · w and lse - log w, w = 1 / (1 + exp(sink - lse)). The backward then runs as it stands: it finds the
/// probabilities from that lse, and ⟨d_out, out⟩ lacks nothing because the sink has no value. Rows without
/// any key are left as they are.
void apply_sinks(const AttentionCall& call);

/// d_sinks[h] = - Σ over the rows of exp(sink - lse) · ⟨d_out, out⟩, in the order of the rows.
Tensor sink_gradient(const AttentionCall& call, const Tensor& d_out);

}  // namespace multihead::detail
