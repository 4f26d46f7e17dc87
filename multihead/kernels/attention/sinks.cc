// Attention sinks: rescales the forward pass's output, and the gradient before the backward pass.
#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/inspect.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

// f(T{}, Accum{}): the types of the outputs and of the arithmetic.
template <class F>
void with_types(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::f64:
      return f(double{}, double{});
    case Dtype::bf16:
      return f(BFloat16{}, float{});
    case Dtype::f16:
      return f(Float16{}, float{});
    default:
      return f(float{}, float{});
  }
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

template <class T>
bool is_empty(T lse) {
  return lse == -std::numeric_limits<T>::infinity();
}

template <class T>
void fill_empty_lse(const AttentionProblem& p, const T* sinks, const Operand& lse_of_rows) {
  for (int64_t n = 0; n < p.batch * p.heads; ++n) {
    const int64_t b = n / p.heads, h = n % p.heads;
    T* lse = row_of<T>(lse_of_rows, b, h, 0) + p.query_begin(b);
    std::replace_if(lse, lse + p.query_count(b), is_empty<T>, sinks[h]);
  }
}

}  // namespace

void attention_add_sinks(const AttentionProblem& p, const void* sinks, const AttentionOutput& to) {
  with_types(to.out.dtype, [&](auto zero, auto accum) {
    using T = decltype(zero);
    using Accum = decltype(accum);
    parallel_ranges(p.batch * p.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t b = n / p.heads, h = n % p.heads;
        const auto sink = double{static_cast<const Accum*>(sinks)[h]};
        for (int64_t row = p.query_begin(b); row < p.query_begin(b) + p.query_count(b); ++row) {
          Accum& lse = row_of<Accum>(to.lse, b, h, 0)[row];
          if (is_empty(lse)) continue;
          const Share share = share_of(double{lse}, sink);
          lse = static_cast<Accum>(share.lse);
          T* out = row_of<T>(to.out, b, h, row);
          std::transform(out, out + p.value_dim, out, [factor = static_cast<Accum>(share.keys)](T x) {
            return static_cast<T>(static_cast<Accum>(x) * factor);
          });
        }
      }
    });
  });
}

void attention_fill_empty_lse(const AttentionProblem& p, const void* sinks, const Operand& lse) {
  lse.dtype == Dtype::f64 ? fill_empty_lse(p, static_cast<const double*>(sinks), lse)
                          : fill_empty_lse(p, static_cast<const float*>(sinks), lse);
}

void attention_sink_gradient(const AttentionProblem& p, const void* sinks, const AttentionOutput& of,
                             const Operand& d_out, const void* d_lse, void* d_sinks) {
  with_types(of.out.dtype, [&](auto zero, auto accum) {
    using T = decltype(zero);
    using Accum = decltype(accum);
    parallel_ranges(p.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        const auto sink = double{static_cast<const Accum*>(sinks)[h]};
        double sum = 0;
        for (int64_t b = 0; b < p.batch; ++b) {
          for (int64_t row = p.query_begin(b); row < p.query_begin(b) + p.query_count(b); ++row) {
            const Accum lse = row_of<const Accum>(of.lse, b, h, 0)[row];
            const Operand of_lse(const_cast<void*>(d_lse), of.lse.dtype, of.lse.strides);
            const double d_sum = d_lse ? double{row_of<const Accum>(of_lse, b, h, 0)[row]} : 0.0;
            if (is_empty(lse)) {
              sum += d_sum;  // the log-sum-exp is the sink itself
              continue;
            }
            const T* out = row_of<const T>(of.out, b, h, row);
            const Accum* d = row_of<const Accum>(d_out, b, h, row);
            double dot = 0;
            for (int64_t c = 0; c < p.value_dim; ++c) {
              dot += double{d[c]} * static_cast<double>(static_cast<Accum>(out[c]));
            }
            sum -= std::exp(sink - double{lse}) * (dot - d_sum);
          }
        }
        static_cast<Accum*>(d_sinks)[h] = static_cast<Accum>(sum);
      }
    });
  });
}

}  // namespace multihead::kernels
