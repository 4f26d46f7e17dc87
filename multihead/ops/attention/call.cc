#include "multihead/ops/attention/call-inl.h"

#include <cstdlib>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/attention/inspect.h"
#include "multihead/kernels/elementwise/accumulate.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/inspect/capture-inl.h"
#include "multihead/ops/attention/int8.h"
#include "multihead/ops/attention/terms-inl.h"
#include "multihead/ops/dispatch-inl.h"

namespace multihead::detail {
namespace {

bool is_half(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::f16; }

bool captures(const AttentionCapture& c) {
  return c.weights.defined() || c.key_mass.defined() || c.entropy.defined() || c.top_weights.defined();
}

kernels::Operand lse_operand(const AttentionCall& call) {
  return operand(call.lse, call.bound->sizes().ragged ? Axes{-1, 0, 1} : kBhtd);
}

// Query, key and value in the type of the arithmetic.
struct WideInput {
  Tensor query, key, value;
  explicit WideInput(const AttentionCall& call)
      : query(in_arithmetic(call.query)), key(in_arithmetic(call.key)), value(in_arithmetic(call.value)) {}
};

template <class Tensors>
kernels::AttentionInput input_of(const Tensors& x, const Axes& axes) {
  return {operand(x.query, axes), operand(x.key, axes), operand(x.value, axes)};
}

void check_no_empty_row(const AttentionCall& call) {
  const AttentionSizes& sizes = call.bound->sizes();
  const kernels::AttentionProblem& p = call.bound->problem();
  const Tensor wide = call.lse.to(Dtype::f64);
  const kernels::Strides3 strides = lse_operand(call).strides;
  const bool weights = call.bound->terms().weights();
  const double none = weights ? 0 : -std::numeric_limits<double>::infinity();
  for (int64_t b = 0; b < sizes.batch; ++b) {
    const int64_t rows = p.query_lengths ? p.query_lengths[b] : sizes.query_count(b);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const double* lse = wide.data<double>() + b * strides.batch + h * strides.head + p.query_begin(b);
      for (int64_t i = 0; i < rows; ++i) {
        MH_CHECK(lse[i] != none, ValueError, call.bound->who(), ": query ", i, " of head ", h, " in sample ",
                 b, " has no key to attend to", weights ? ", or weights whose sum is 0" : "",
                 " (empty_row = error)");
      }
    }
  }
}

// The kernel knows [H, …]; a table that all heads share gets the sum over them.
Tensor sum_over_heads(const Tensor& full, const Shape& shape) {
  if (!full.defined() || full.shape() == shape) return full;
  const Tensor sum = Tensor::zeros(shape, full.dtype());
  const int64_t count = sum.numel();
  for (int64_t h = 0; h < full.size(0); ++h) {
    with_data([&](auto* to, auto* from) { kernels::accumulate(to, from + h * count, count); }, sum, full);
  }
  return sum;
}

}  // namespace

std::vector<Tensor> captured_gradients(const ScoreMod& mod, const Tensor& sums) {
  std::vector<Tensor> gradients;
  int64_t begin = 0;
  for (const Tensor& x : mod.captured()) {
    Tensor part = Tensor::empty(x.shape(), sums.dtype());
    part.copy_from(sums.as_strided(x.shape(), part.strides(), begin));
    gradients.push_back(part.to(is_half(x.dtype()) ? Dtype::f32 : x.dtype()));
    begin += x.numel();
  }
  return gradients;
}

kernels::Operand operand(const Tensor& x, const Axes& axes) {
  if (!x.defined()) return {};
  const Shape& s = x.strides();
  return {x.raw(), x.dtype(), {axes.batch < 0 ? 0 : s[axes.batch], s[axes.head], s[axes.token]}};
}

Tensor in_arithmetic(const Tensor& x) {
  if (x.dtype() == Dtype::i32) return from_int8_rows(x);
  return is_half(x.dtype()) ? x.to(Dtype::f32) : with_dense_rows(x);
}

bool stays_bf16(const AttentionCall& call) {
  const auto narrow = [](const Tensor& x) { return x.dtype() == Dtype::bf16; };
  return kernels::bf16_tiles() && narrow(call.query) && narrow(call.key) && narrow(call.value) &&
         !call.bound->terms().relative_key && !call.bound->terms().relative_value &&
         !call.bound->terms().weights();
}

AttentionCall widened(const AttentionCall& call) {
  AttentionCall wide = call;
  wide.query = in_arithmetic(call.query), wide.key = in_arithmetic(call.key);
  wide.value = in_arithmetic(call.value), wide.out = in_arithmetic(call.out);
  return wide;
}

Tensor with_dense_rows(const Tensor& x) {
  return x.size(-1) <= 1 || x.strides()[-1] == 1 ? x.detach() : x.contiguous();
}

Tensor empty_ordered_like(const Tensor& like, const Shape& shape, Dtype dtype) {
  const bool tokens_outside = shape.rank() == 4 && like.size(1) > 1 && like.size(2) > 1 &&
                              std::abs(like.strides()[1]) < std::abs(like.strides()[2]);
  if (!tokens_outside) return Tensor::empty(shape, dtype);
  const Tensor memory = Tensor::empty({shape[0], shape[2], shape[1], shape[3]}, dtype);
  const Shape& s = memory.strides();
  return memory.as_strided(shape, {s[0], s[2], s[1], s[3]});
}

Tensor empty_gradient(const Tensor& x) {
  return empty_ordered_like(x, x.shape(), arithmetic_dtype(x.dtype()));
}

AttentionCall bind_call(const char* who, const AttentionSizes& sizes, const Axes& axes,
                        const std::array<Tensor, 3>& query_key_value, const AttentionOptions& options,
                        const ScoreMod& score_mod) {
  const auto& [query, key, value] = query_key_value;
  return {std::make_shared<BoundAttention>(who, sizes, options, score_mod, query.dtype()),
          axes,
          query,
          key,
          value,
          {},
          {}};
}

AttentionCall make_call(const char* who, const AttentionSizes& s, const Tensor& query, const Tensor& key,
                        const Tensor& value, const AttentionOptions& options, const ScoreMod& score_mod) {
  const bool bthd = options.layout == Layout::bthd;
  AttentionCall call =
      bind_call(who, s, bthd ? kBthd : kBhtd,
                {with_dense_rows(query), with_dense_rows(key), with_dense_rows(value)}, options, score_mod);
  call.out = bthd ? Tensor::empty({s.batch, s.queries, s.heads, s.value_dim}, query.dtype())
                  : empty_ordered_like(query, {s.batch, s.heads, s.queries, s.value_dim}, query.dtype());
  return call;
}

AttentionCall prepare_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                                const AttentionOptions& options, const ScoreMod& score_mod) {
  return make_call(who, check_attention(who, query, key, value, options.layout), query, key, value, options,
                   score_mod);
}

void compute_attention(AttentionCall& call, const AttentionOptions& options) {
  const BoundAttention& bound = *call.bound;
  const AttentionSizes& s = bound.sizes();
  const Dtype type = call.query.dtype();
  if (options.capture) check_capture(bound, *options.capture);
  const Shape rows = s.ragged ? Shape{s.heads, call.query.size(0)} : Shape{s.batch, s.heads, s.queries};
  call.lse = Tensor::empty(rows, arithmetic_dtype(type));
  const bool is_stored_narrow = type == Dtype::f16;  // which is storage alone
  const Tensor out = is_stored_narrow ? Tensor::empty(call.out.shape(), Dtype::f32) : call.out;
  const kernels::AttentionOutput to = {operand(out, call.axes), lse_operand(call)};
  if (is_stored_narrow) {
    const WideInput wide(call);
    kernels::attention_forward(bound.problem(), bound.terms(), input_of(wide, call.axes), to);
  } else {
    kernels::attention_forward(bound.problem(), bound.terms(), input_of(call, call.axes), to);
  }
  if (const Tensor& sinks = bound.tensor(&AttentionOptions::sinks); sinks.defined()) {
    kernels::attention_add_sinks(bound.problem(), sinks.raw(), to);
  }
  if (is_stored_narrow) call.out.copy_from(out);
  if (options.empty_row == EmptyRow::error) check_no_empty_row(call);
  if (options.capture) {
    const WideInput wide(call);
    fill_capture(bound, input_of(wide, call.axes), *options.capture);
  }
  if (options.lse) *options.lse = reported_lse(call);
}

Tensor reported_lse(const AttentionCall& call) {
  AttentionCall filled = call;
  filled.lse = call.lse.clone();  // the backward reads its own
  const Tensor& sinks = call.bound->tensor(&AttentionOptions::sinks);
  if (!sinks.defined()) return filled.lse;
  kernels::AttentionProblem own = call.bound->problem();
  if (!own.sequences) own.queries = call.lse.size(2);  // of a rank in a ring
  kernels::attention_fill_empty_lse(own, sinks.raw(), lse_operand(filled));
  return filled.lse;
}

TermGradients attention_gradients(const AttentionCall& call, const OutputGradients& from,
                                  const Tensor& d_query, const Tensor& d_key, const Tensor& d_value,
                                  const WantedGradients& wanted) {
  const BoundAttention& bound = *call.bound;
  const Dtype dtype = arithmetic_dtype(call.query.dtype());
  const bool narrow = stays_bf16(call) && !captures(from.capture);
  const AttentionCall in = narrow ? call : widened(call);
  const Tensor dy = in_arithmetic(from.out);
  const Tensor d_lse = from.lse.defined() ? from.lse.contiguous() : Tensor();
  kernels::AttentionGradient g;
  g.out = operand(in.out, call.axes), g.lse = lse_operand(call), g.d_out = operand(dy, call.axes);
  MH_CHECK(dy.dtype() == dtype && (!d_lse.defined() || d_lse.dtype() == dtype), DtypeError, bound.who(),
           ": the gradients of the results must be ", dtype, ", got ", dy.dtype());
  if (d_lse.defined()) g.d_lse = d_lse.raw();
  g.d_query = operand(d_query, call.axes), g.d_key = operand(d_key, call.axes);
  g.d_value = operand(d_value, call.axes);
  TermGradients to;
  const auto memory = [&](Tensor AttentionOptions::*option) -> void* {
    const size_t index = learned_index(option);
    if (!wanted.terms[index]) return nullptr;
    to.terms[index] = Tensor::empty(bound.tensor(option).shape(), dtype);
    return to.terms[index].raw();
  };
  for (const AttentionTerm& term : attention_terms()) {
    if (term.gradient != nullptr) g.*term.gradient = memory(term.tensor);
  }
  Tensor captured;
  if (wanted.captured) {
    captured = Tensor::empty({bound.terms().score_function.captured}, dtype);
    g.d_captured = captured.raw();
  }
  kernels::attention_backward(bound.problem(), bound.terms(), input_of(in, call.axes), g);
  void* d_sinks = memory(&AttentionOptions::sinks);
  if (d_sinks) {
    kernels::attention_sink_gradient(bound.problem(), bound.tensor(&AttentionOptions::sinks).raw(),
                                     {g.out, g.lse}, g.d_out, g.d_lse, d_sinks);
  }
  add_capture_gradients(bound, input_of(in, call.axes), from.capture, g, d_sinks);
  if (wanted.captured) to.captured = captured_gradients(bound.score_mod(), captured);
  for (const auto option : kLearnedOptions) {
    Tensor& gradient = to.terms[learned_index(option)];
    gradient = sum_over_heads(gradient, bound.shape(option));
  }
  return to;
}

}  // namespace multihead::detail
