// One call of attention between the checks and the tape: operands by strides, forward, capture, backward.
// Internal to ops.
#pragma once

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

/// A tensor whose last axis is contiguous, as the kernels see it.
struct Operand {
  Tensor tensor;
  kernels::Strides3 strides;
};

/// What the backward keeps: O(T) memory.
struct AttentionCall {
  std::shared_ptr<const BoundAttention> bound;
  Axes axes;
  Operand query, key, value, out;
  Tensor lse;
  kernels::Strides3 lse_strides;
};

/// Which gradients somebody wants.
struct WantedGradients {
  bool query = false, key = false, value = false, bias = false, alibi = false, relative = false,
       sinks = false, relative_key = false, captured = false;
};

/// Gradients that come in. An undefined `lse` ([...] as AttentionCall::lse, of its dtype) has none.
struct OutputGradients {
  Tensor out, lse;
};

struct TermGradients {
  Tensor bias, alibi, relative, sinks, relative_key;
  std::vector<Tensor> captured;  ///< of ScoreMod::captured()
};

/// f64 for f64, else f32.
Dtype arithmetic_dtype(Dtype dtype);

/// `x`, or a copy if its last axis is not contiguous. No gradient.
Operand operand(const Tensor& x, const Axes& axes);

/// New memory of this shape with the tokens outside the heads if those of `like` are.
Tensor empty_ordered_like(const Tensor& like, const Shape& shape, Dtype dtype);

/// Allocates lse, fills call.out, and hands out what the options ask for.
void compute_attention(AttentionCall& call, const AttentionOptions& options);

/// Writes d_query, d_key, d_value (where wanted) and returns the gradients of the additive terms, which have
/// the shapes of options.bias, options.alibi_slopes, `relative_shape`, options.sinks and
/// options.relative_key.
TermGradients attention_gradients(const AttentionCall& call, const OutputGradients& from,
                                  const Operand& d_query, const Operand& d_key, const Operand& d_value,
                                  const WantedGradients& wanted, const Shape& relative_shape);

}  // namespace multihead::detail
