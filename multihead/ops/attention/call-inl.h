// One call of attention between the checks and the tape: operands by strides, forward, capture, backward.
// Internal to ops.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// Where the batch, head and token axes of an operand are; -1: it has no such axis. The last axis is the
/// contiguous one.
struct Axes {
  int batch, head, token;
};
inline constexpr Axes kBhtd = {0, 1, 2}, kBthd = {0, 2, 1}, kRagged = {-1, 1, 0};

/// A call as the backward keeps it: O(T) memory.
struct AttentionCall {
  std::shared_ptr<const BoundAttention> bound;
  Axes axes;
  Tensor query, key, value, out;  ///< the last axis contiguous
  Tensor lse;  ///< [B, H, Tq], of a ragged batch [H, N]; -inf for rows without any key, sink or not
};

/// Which gradients are wanted besides those of query, key and value.
struct WantedGradients {
  std::array<bool, kLearnedCount> terms = {};
  bool captured = false;
};

/// Gradients that come in. An undefined `lse` ([...] as AttentionCall::lse, of its dtype) has none; nor has
/// what is undefined in `capture`, which has gradients in the places of its tensors.
struct OutputGradients {
  Tensor out, lse = {};
  AttentionCapture capture = {};
};

/// Undefined where not wanted.
struct TermGradients {
  TermTensors terms;
  std::vector<Tensor> captured;  ///< of ScoreMod::captured()
};

/// `x` as the kernels take it; absent if undefined.
kernels::Operand operand(const Tensor& x, const Axes& axes);

/// `x` in the type of the arithmetic, the last axis contiguous. No gradient.
Tensor in_arithmetic(const Tensor& x);

/// Whether the backward takes the call as it is: in bf16, on tiles. Else it takes `widened(call)`: query, key, value
/// and out in the type of the arithmetic.
bool stays_bf16(const AttentionCall& call);
AttentionCall widened(const AttentionCall& call);

/// `x`, or a copy if its last axis is not contiguous. No gradient.
Tensor with_dense_rows(const Tensor& x);

/// New memory of this shape with the tokens outside the heads if those of `like` are.
Tensor empty_ordered_like(const Tensor& like, const Shape& shape, Dtype dtype);

/// Memory for the gradient of `x`, laid out as that is.
Tensor empty_gradient(const Tensor& x);

/// A call of checked sizes, whose options are checked here; call.out comes next.
AttentionCall bind_call(const char* who, const AttentionSizes& sizes, const Axes& axes,
                        const std::array<Tensor, 3>& query_key_value, const AttentionOptions& options,
                        const ScoreMod& score_mod);
/// A call on query, key and value of options.layout, whose sizes are checked, with memory for its output.
AttentionCall make_call(const char* who, const AttentionSizes& sizes, const Tensor& query, const Tensor& key,
                        const Tensor& value, const AttentionOptions& options, const ScoreMod& score_mod);
/// A call on query, key and value of options.layout, everything checked, with memory for its output.
AttentionCall prepare_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                                const AttentionOptions& options, const ScoreMod& score_mod);

/// Allocates lse, fills call.out, and returns what the options request.
void compute_attention(AttentionCall& call, const AttentionOptions& options);

/// The parts of a kernel's sums, in the shapes of what a score function captured; 16 bits get f32.
std::vector<Tensor> captured_gradients(const ScoreMod& mod, const Tensor& sums);

/// call.lse for the caller, where the sinks of rows without any key count.
Tensor reported_lse(const AttentionCall& call);

/// Writes d_query, d_key and d_value, those that have memory, and returns the other gradients, which have the
/// shapes of their tensors in the options.
TermGradients attention_gradients(const AttentionCall& call, const OutputGradients& from,
                                  const Tensor& d_query, const Tensor& d_key, const Tensor& d_value,
                                  const WantedGradients& wanted);

}  // namespace multihead::detail
