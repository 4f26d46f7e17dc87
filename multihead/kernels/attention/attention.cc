// Entry points of attention: choose the kernel for the type.
#include "multihead/kernels/attention/attention.h"

#include <algorithm>
#include <vector>

#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {

void attention_forward(const AttentionProblem& p, const ScoreTerms<double>& t,
                       const AttentionInput<double>& in, const AttentionOutput<double>& out) {
  reference_attention_forward(p, t, in, out);
}

void attention_backward(const AttentionProblem& p, const ScoreTerms<double>& t,
                        const AttentionInput<double>& in, const AttentionGradient<double>& g) {
  reference_attention_backward(p, t, in, g);
}

namespace {

template <class T>
void set_input(ForwardCall& call, const AttentionInput<T>& in) {
  call.query = in.query, call.query_strides = in.query_strides;
  call.key = in.key, call.key_strides = in.key_strides;
  call.value = in.value, call.value_strides = in.value_strides;
}

template <class T>
ForwardCall forward_call(const AttentionProblem& p, const ScoreTerms<float>& t, const AttentionInput<T>& in,
                         const AttentionOutput<T, float>& out) {
  ForwardCall call = digest_forward(p, t, sizeof(T));
  set_input(call, in);
  call.out = out.out, call.out_strides = out.out_strides;
  call.lse = out.lse, call.lse_strides = out.lse_strides;
  return call;
}

template <class T>
BackwardCall backward_call(const AttentionProblem& p, const ScoreTerms<float>& t, const AttentionInput<T>& in,
                           const AttentionGradient<T, float>& g) {
  BackwardCall call;
  call.forward = digest_forward(p, t, sizeof(T));
  set_input(call.forward, in);
  call.gradient = gradient_of<void>(g);
  return call;
}

void run(ForwardCall call) {
  choose_engine(call);
  run_forward(call);
}

void run(BackwardCall call) {
  choose_engine(call.forward);
  run_backward(call);
}

ForwardCall& on_tiles(ForwardCall& call, TileUnit unit, PartScheme scheme) {
  call.engine = Engine::amx, call.unit = unit, call.scheme = scheme;
  return call;
}

}  // namespace

void attention_forward_on_tiles(const AttentionProblem& p, const ScoreTerms<float>& t,
                                const AttentionInput<float>& in, const AttentionOutput<float>& out,
                                MatmulPrecision precision, TileUnit unit) {
  ForwardCall call = forward_call(p, t, in, out);
  run_forward(on_tiles(call, unit, part_scheme(precision)));
}

void attention_forward_on_tiles(const AttentionProblem& p, const ScoreTerms<float>& t,
                                const AttentionInput<BFloat16>& in,
                                const AttentionOutput<BFloat16, float>& out, TileUnit unit) {
  ForwardCall call = forward_call(p, t, in, out);
  run_forward(on_tiles(call, unit, {}));
}

void attention_backward_on_tiles(const AttentionProblem& p, const ScoreTerms<float>& t,
                                 const AttentionInput<float>& in, const AttentionGradient<float>& g,
                                 MatmulPrecision precision, TileUnit unit) {
  BackwardCall call = backward_call(p, t, in, g);
  on_tiles(call.forward, unit, part_scheme(precision));
  run_backward(call);
}

void attention_backward_on_tiles(const AttentionProblem& p, const ScoreTerms<float>& t,
                                 const AttentionInput<BFloat16>& in,
                                 const AttentionGradient<BFloat16, float>& g, TileUnit unit) {
  BackwardCall call = backward_call(p, t, in, g);
  on_tiles(call.forward, unit, {});
  run_backward(call);
}

void attention_forward(const AttentionProblem& p, const ScoreTerms<float>& t, const AttentionInput<float>& in,
                       const AttentionOutput<float>& out) {
  current_isa() == Isa::baseline ? reference_attention_forward(p, t, in, out)
                                 : run(forward_call(p, t, in, out));
}

void attention_backward(const AttentionProblem& p, const ScoreTerms<float>& t,
                        const AttentionInput<float>& in, const AttentionGradient<float>& g) {
  current_isa() == Isa::baseline ? reference_attention_backward(p, t, in, g)
                                 : run(backward_call(p, t, in, g));
}

void attention_forward(const AttentionProblem& p, const ScoreTerms<float>& t,
                       const AttentionInput<BFloat16>& in, const AttentionOutput<BFloat16, float>& out) {
  const ForwardCall call = forward_call(p, t, in, out);
  current_isa() == Isa::baseline ? specified_forward(call) : run(call);
}

void attention_backward(const AttentionProblem& p, const ScoreTerms<float>& t,
                        const AttentionInput<BFloat16>& in, const AttentionGradient<BFloat16, float>& g) {
  const BackwardCall call = backward_call(p, t, in, g);
  current_isa() == Isa::baseline ? specified_backward(call) : run(call);
}

}  // namespace multihead::kernels
