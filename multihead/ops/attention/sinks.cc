#include "multihead/ops/attention/sinks-inl.h"

#include <cmath>
#include <limits>

#include "multihead/core/parallel.h"

namespace multihead::detail {
namespace {

// Of one row: where its log-sum-exp and its elements begin.
struct RowPlace {
  int64_t lse, out;
};

RowPlace place(const AttentionCall& call, const kernels::Strides3& out, int64_t b, int64_t h, int64_t i) {
  const int64_t row = call.bound->problem().query_begin(b) + i;
  return {b * call.lse_strides.batch + h * call.lse_strides.head + row,
          b * out.batch + h * out.head + row * out.token};
}

// Share of the keys in a row's softmax, and the logarithm of the whole sum. A sink of -inf changes nothing.
struct Share {
  double keys, lse;
};
Share share_of(double lse, double sink) {
  const double larger = std::max(lse, sink);
  const double all = larger + std::log1p(std::exp(std::min(lse, sink) - larger));
  return {std::exp(lse - all), all};
}

template <class T, class Accum>
void scale_row(T* out, int64_t count, double factor) {
  for (int64_t c = 0; c < count; ++c) {
    out[c] = static_cast<T>(static_cast<Accum>(out[c]) * static_cast<Accum>(factor));
  }
}

template <class T, class Accum = T>
void apply(const AttentionCall& call) {
  const AttentionSizes& s = call.bound->sizes();
  const Accum* sinks = call.bound->tensor(kSinks).data<Accum>();
  Accum* lse = call.lse.data<Accum>();
  T* out = call.out.tensor.data<T>();
  parallel_ranges(s.batch * s.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t b = n / s.heads, h = n % s.heads;
      for (int64_t i = 0; i < s.query_count(b); ++i) {
        const RowPlace at = place(call, call.out.strides, b, h, i);
        if (lse[at.lse] == -std::numeric_limits<Accum>::infinity()) continue;
        const Share share = share_of(double{lse[at.lse]}, double{sinks[h]});
        lse[at.lse] = static_cast<Accum>(share.lse);
        scale_row<T, Accum>(out + at.out, s.value_dim, share.keys);
      }
    }
  });
}

template <class T, class Accum = T>
void add_gradient(const AttentionCall& call, const Operand& d_out, const Tensor& d_sinks) {
  const AttentionSizes& s = call.bound->sizes();
  const Accum* sinks = call.bound->tensor(kSinks).data<Accum>();
  const Accum* lse = call.lse.data<Accum>();
  const T* out = call.out.tensor.data<T>();
  const Accum* dy = d_out.tensor.data<Accum>();
  parallel_ranges(s.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;
      for (int64_t b = 0; b < s.batch; ++b) {
        for (int64_t i = 0; i < s.query_count(b); ++i) {
          const RowPlace at = place(call, call.out.strides, b, h, i);
          if (lse[at.lse] == -std::numeric_limits<Accum>::infinity()) continue;
          const Accum* d = dy + place(call, d_out.strides, b, h, i).out;
          double dot = 0;
          for (int64_t c = 0; c < s.value_dim; ++c)
            dot += double{d[c]} * static_cast<double>(static_cast<Accum>(out[at.out + c]));
          sum -= std::exp(double{sinks[h]} - double{lse[at.lse]}) * dot;
        }
      }
      d_sinks.data<Accum>()[h] = static_cast<Accum>(sum);
    }
  });
}

}  // namespace

void apply_sinks(const AttentionCall& call) {
  const Dtype dtype = call.query.tensor.dtype();
  const auto run = dtype == Dtype::f64    ? apply<double>
                   : dtype == Dtype::bf16 ? apply<BFloat16, float>
                   : dtype == Dtype::f16  ? apply<Float16, float>
                                          : apply<float>;
  run(call);
}

Tensor sink_gradient(const AttentionCall& call, const Tensor& d_out) {
  const Dtype dtype = call.query.tensor.dtype(), arithmetic = arithmetic_dtype(dtype);
  const Operand dy = operand(d_out.dtype() == arithmetic ? d_out : d_out.to(arithmetic), call.axes);
  const Tensor gradient = empty_like(call.bound->tensor(kSinks));
  const auto run = dtype == Dtype::f64    ? add_gradient<double>
                   : dtype == Dtype::bf16 ? add_gradient<BFloat16, float>
                   : dtype == Dtype::f16  ? add_gradient<Float16, float>
                                          : add_gradient<float>;
  run(call, dy, gradient);
  return gradient;
}

}  // namespace multihead::detail
