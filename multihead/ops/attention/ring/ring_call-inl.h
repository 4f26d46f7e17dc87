// One call of ring_attention() between the checks and the tape. Internal to ops.
#pragma once

#include <array>
#include <vector>

#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/ring/relay-inl.h"
#include "multihead/ops/attention/ring/shards.h"

namespace multihead::detail {

/// A call as the backward keeps it.
struct RingCall {
  distributed::Group* group;
  SequenceShards shards;
  AttentionCall call;           ///< bound to the whole sequence, with the rank's rows; [B, H, T', D]
  bool has_large_rows = false;  ///< on any rank: attention() computes their gradients from all keys at once
};

/// Gradients of query, key and value.
using RingGradients = std::array<Tensor, 3>;

/// Fills call.out, call.lse and has_large_rows. False if an output is not finite anywhere: then nothing is certain.
bool ring_forward(RingCall& ring);
/// Likewise: the gradients mean nothing then. Those not wanted may be undefined. There are no large rows.
bool ring_backward(const RingCall& ring, const OutputGradients& d, const std::array<bool, 3>& wanted,
                   RingGradients& gradients);

}  // namespace multihead::detail
