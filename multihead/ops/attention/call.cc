#include "multihead/ops/attention/call-inl.h"

#include <cstdlib>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/ops/attention/capture-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/sinks-inl.h"

namespace multihead::detail {
namespace {

using kernels::Strides3;

bool is_half(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::f16; }

Tensor with_dense_rows(const Tensor& x) {
  return x.size(-1) <= 1 || x.strides()[-1] == 1 ? x.detach() : x.contiguous();
}

// `x` in the type of the arithmetic, rows contiguous.
Tensor widened(const Tensor& x) { return is_half(x.dtype()) ? x.to(Dtype::f32) : with_dense_rows(x); }

Strides3 strides_of(const Tensor& x, const Axes& axes) {
  const Shape& s = x.strides();
  return {axes.batch < 0 ? 0 : s[axes.batch], s[axes.head], s[axes.token]};
}

Operand widened(const Operand& x, const Axes& axes) {
  if (!is_half(x.tensor.dtype())) return x;
  const Tensor wide = x.tensor.to(Dtype::f32);
  return {wide, strides_of(wide, axes)};
}

template <class T>
kernels::AttentionInput<T> input_of(const Operand& query, const Operand& key, const Operand& value) {
  return {query.tensor.data<T>(), key.tensor.data<T>(), value.tensor.data<T>(),
          query.strides,          key.strides,          value.strides};
}

template <class T, class Accum = T>
void forward(const AttentionCall& call) {
  kernels::attention_forward(call.bound->problem(), call.bound->terms<Accum>(),
                             input_of<T>(call.query, call.key, call.value),
                             kernels::AttentionOutput<T, Accum>{call.out.tensor.data<T>(), call.out.strides,
                                                                call.lse.data<Accum>(), call.lse_strides});
}

void forward_f16(const AttentionCall& call) {
  AttentionCall wide = call;
  wide.query = widened(call.query, call.axes);
  wide.key = widened(call.key, call.axes);
  wide.value = widened(call.value, call.axes);
  const Tensor out = Tensor::empty(call.out.tensor.shape(), Dtype::f32);
  wide.out = {out, strides_of(out, call.axes)};
  forward<float>(wide);
  call.out.tensor.copy_from(out);
}

template <class T>
void check_no_empty_row(const AttentionCall& call) {
  const AttentionSizes& sizes = call.bound->sizes();
  const kernels::AttentionProblem& p = call.bound->problem();
  for (int64_t b = 0; b < sizes.batch; ++b) {
    const int64_t rows = p.query_lengths ? p.query_lengths[b] : sizes.query_count(b);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const T* lse =
          call.lse.data<T>() + b * call.lse_strides.batch + h * call.lse_strides.head + p.query_begin(b);
      for (int64_t i = 0; i < rows; ++i) {
        MH_CHECK(lse[i] != -std::numeric_limits<T>::infinity(), ValueError, call.bound->who(), ": query ", i,
                 " of head ", h, " in sample ", b, " has no key to attend to (empty_row = error)");
      }
    }
  }
}

template <class T>
void capture(const AttentionCall& call, AttentionCapture& to) {
  const Operand q = widened(call.query, call.axes), k = widened(call.key, call.axes),
                v = widened(call.value, call.axes);
  fill_capture<T>(*call.bound, {input_of<T>(q, k, v), call.lse.data<T>(), call.lse_strides}, to);
}

// --- backward --------------------------------------------------------------------------------------------

// The parts of the kernel's sums, in the shapes of what was captured; 16 bits get f32.
std::vector<Tensor> captured_gradients(const ScoreMod& mod, const Tensor& sums) {
  std::vector<Tensor> gradients;
  int64_t begin = 0;
  for (const Tensor& x : mod.captured()) {
    Tensor part = Tensor::empty(x.shape(), sums.dtype());
    part.copy_from(sums.as_strided(x.shape(), part.strides(), begin));
    gradients.push_back(is_half(x.dtype()) ? part : part.to(x.dtype()));
    begin += x.numel();
  }
  return gradients;
}

// The kernel knows [H, …]; a table that all heads share gets the sum over them.
template <class T>
Tensor sum_over_heads(const Tensor& full, const Shape& shape) {
  if (!full.defined() || full.shape() == shape) return full;
  const Tensor sum = Tensor::zeros(shape, full.dtype());
  const int64_t count = sum.numel();
  for (int64_t h = 0; h < full.size(0); ++h) {
    for (int64_t i = 0; i < count; ++i) sum.data<T>()[i] += full.data<T>()[h * count + i];
  }
  return sum;
}

template <class T>
TermGradients run_backward(const AttentionCall& call, const OutputGradients& from, const Operand& d_query,
                           const Operand& d_key, const Operand& d_value, const WantedGradients& wanted) {
  const BoundAttention& bound = *call.bound;
  const Operand q = widened(call.query, call.axes), k = widened(call.key, call.axes),
                v = widened(call.value, call.axes);
  const Operand out = widened(call.out, call.axes), dy = operand(widened(from.out), call.axes);
  kernels::AttentionGradient<T> g;
  g.out = out.tensor.data<T>(), g.out_strides = out.strides;
  g.lse = call.lse.data<T>(), g.lse_strides = call.lse_strides;
  g.d_out = dy.tensor.data<T>(), g.d_out_strides = dy.strides;
  const Tensor d_lse = from.lse.defined() ? from.lse.contiguous() : Tensor();
  if (d_lse.defined()) g.d_lse = d_lse.data<T>();
  if (d_query.tensor.defined()) g.d_query = d_query.tensor.data<T>(), g.d_query_strides = d_query.strides;
  if (d_key.tensor.defined()) g.d_key = d_key.tensor.data<T>(), g.d_key_strides = d_key.strides;
  if (d_value.tensor.defined()) g.d_value = d_value.tensor.data<T>(), g.d_value_strides = d_value.strides;
  TermGradients to;
  const auto memory = [&](Term term) -> T* {
    if (!wanted.terms[term]) return nullptr;
    Shape shape = bound.tensor(term).shape();
    if (term == kRelativeKey) shape[0] = bound.sizes().heads;
    to.terms[term] = Tensor::empty(shape, dtype_of<T>);
    return to.terms[term].template data<T>();
  };
  g.d_bias = memory(kBias);
  g.d_alibi_slopes = memory(kAlibiSlopes);
  g.d_relative_bias = memory(kRelativeBias);
  g.d_relative_key = memory(kRelativeKey);
  Tensor captured;
  if (wanted.captured) {
    captured = Tensor::empty({bound.terms<T>().score_function.captured}, dtype_of<T>);
    g.d_captured = captured.data<T>();
  }
  kernels::attention_backward(bound.problem(), bound.terms<T>(), input_of<T>(q, k, v), g);
  if (wanted.captured) to.captured = captured_gradients(bound.score_mod(), captured);
  for (const Term term : {kRelativeBias, kRelativeKey}) {
    to.terms[term] = sum_over_heads<T>(to.terms[term], bound.shape(term));
  }
  return to;
}

}  // namespace

Dtype arithmetic_dtype(Dtype dtype) { return is_half(dtype) ? Dtype::f32 : dtype; }

Operand operand(const Tensor& x, const Axes& axes) {
  const Tensor dense = with_dense_rows(x);
  return {dense, strides_of(dense, axes)};
}

Tensor empty_ordered_like(const Tensor& like, const Shape& shape, Dtype dtype) {
  const bool tokens_outside = shape.rank() == 4 && like.size(1) > 1 && like.size(2) > 1 &&
                              std::abs(like.strides()[1]) < std::abs(like.strides()[2]);
  if (!tokens_outside) return Tensor::empty(shape, dtype);
  const Tensor memory = Tensor::empty({shape[0], shape[2], shape[1], shape[3]}, dtype);
  const Shape& s = memory.strides();
  return memory.as_strided(shape, {s[0], s[2], s[1], s[3]});
}

Operand empty_gradient(const Operand& x, const Axes& axes) {
  const Tensor& like = x.tensor;
  return operand(empty_ordered_like(like, like.shape(), arithmetic_dtype(like.dtype())), axes);
}

AttentionCall bind_call(const char* who, const AttentionSizes& sizes, const Axes& axes,
                        std::array<Operand, 3> query_key_value, const AttentionOptions& options,
                        const ScoreMod& score_mod) {
  const Dtype dtype = arithmetic_dtype(query_key_value[0].tensor.dtype());
  return {std::make_shared<BoundAttention>(who, sizes, options, score_mod, dtype),
          axes,
          std::move(query_key_value[0]),
          std::move(query_key_value[1]),
          std::move(query_key_value[2]),
          {},
          {},
          {}};
}

AttentionCall prepare_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                                const AttentionOptions& options, const ScoreMod& score_mod) {
  const AttentionSizes s = check_attention(who, query, key, value, options.layout);
  const bool bthd = options.layout == Layout::bthd;
  const Axes& axes = bthd ? kBthd : kBhtd;
  AttentionCall call = bind_call(
      who, s, axes, {operand(query, axes), operand(key, axes), operand(value, axes)}, options, score_mod);
  call.out =
      operand(bthd ? Tensor::empty({s.batch, s.queries, s.heads, s.value_dim}, query.dtype())
                   : empty_ordered_like(query, {s.batch, s.heads, s.queries, s.value_dim}, query.dtype()),
              axes);
  return call;
}

void compute_attention(AttentionCall& call, const AttentionOptions& options) {
  const AttentionSizes& sizes = call.bound->sizes();
  const Dtype type = call.query.tensor.dtype(), dtype = arithmetic_dtype(type);
  if (options.capture) check_capture(*call.bound, *options.capture);
  if (sizes.ragged) {
    call.lse = Tensor::empty({sizes.heads, call.query.tensor.size(0)}, dtype);
    call.lse_strides = {0, call.lse.size(1), 1};
  } else {
    call.lse = Tensor::empty({sizes.batch, sizes.heads, sizes.queries}, dtype);
    call.lse_strides = {sizes.heads * sizes.queries, sizes.queries, 1};
  }
  const bool wide = dtype == Dtype::f64;
  const auto run = wide                  ? forward<double>
                   : type == Dtype::bf16 ? forward<BFloat16, float>
                   : type == Dtype::f16  ? forward_f16
                                         : forward<float>;
  run(call);
  if (call.bound->tensor(kSinks).defined()) apply_sinks(call);
  if (options.empty_row == EmptyRow::error)
    (wide ? check_no_empty_row<double> : check_no_empty_row<float>)(call);
  if (options.capture) (wide ? capture<double> : capture<float>)(call, *options.capture);
  if (options.lse) *options.lse = call.lse;
}

TermGradients attention_gradients(const AttentionCall& call, const OutputGradients& from,
                                  const Operand& d_query, const Operand& d_key, const Operand& d_value,
                                  const WantedGradients& wanted) {
  const auto run = call.query.tensor.dtype() == Dtype::f64 ? run_backward<double> : run_backward<float>;
  TermGradients to = run(call, from, d_query, d_key, d_value, wanted);
  if (wanted.terms[kSinks]) to.terms[kSinks] = sink_gradient(call, from.out);
  return to;
}

}  // namespace multihead::detail
