// Entry points of attention: choose the kernel for the type and the instruction set.
#include "multihead/kernels/attention/attention.h"

#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

BackwardCall make_backward_call(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                const AttentionGradient& g) {
  BackwardCall call;
  call.forward = make_forward_call(p, t, in, {g.out, g.lse});
  call.gradient = g;
  return call;
}

void take_tiles(ForwardCall& call, MatmulPrecision precision, TileUnit unit) {
  call.engine = Engine::amx, call.unit = unit;
  if (!call.bf16) call.scheme = part_scheme(precision);
}

}  // namespace

void attention_forward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                       const AttentionOutput& out) {
  if (in.query.dtype == Dtype::f64) return reference_attention_forward<double>(p, t, in, out);
  ForwardCall call = make_forward_call(p, t, in, out);
  if (current_isa() == Isa::baseline) {
    return call.bf16 || call.int8 ? reference_f32_forward(call)
                                  : reference_attention_forward<float>(p, t, in, out);
  }
  choose_engine(call);
  run_forward(call);
}

void attention_backward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                        const AttentionGradient& g) {
  if (in.query.dtype == Dtype::f64) return reference_attention_backward<double>(p, t, in, g);
  BackwardCall call = make_backward_call(p, t, in, g);
  if (current_isa() == Isa::baseline) {
    return call.forward.bf16 ? reference_f32_backward(call)
                             : reference_attention_backward<float>(p, t, in, g);
  }
  choose_engine(call.forward);
  run_backward(call);
}

void attention_forward_on_tiles(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                const AttentionOutput& out, MatmulPrecision precision, TileUnit unit) {
  ForwardCall call = make_forward_call(p, t, in, out);
  take_tiles(call, precision, unit);
  run_forward(call);
}

void attention_backward_on_tiles(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                 const AttentionGradient& g, MatmulPrecision precision, TileUnit unit) {
  BackwardCall call = make_backward_call(p, t, in, g);
  take_tiles(call.forward, precision, unit);
  run_backward(call);
}

}  // namespace multihead::kernels
