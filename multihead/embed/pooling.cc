#include "multihead/embed/pooling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/elementwise.h"

namespace multihead::embed {
namespace {

constexpr double kLeast = 1e-12;  // length that rows are divided by

/// A sequence's tokens that are pooled.
struct Span {
  int64_t first;  ///< place in the sequence
  int64_t count, dim;
};

// The weight of a token in the sum; divisor_of() is what the sum is divided by.
template <class T>
T share_of(Pooling how, const Span& s, int64_t t) {
  return how == Pooling::weighted_mean ? static_cast<T>(s.first + t + 1) : T(1);
}

template <class T>
T divisor_of(Pooling how, const Span& s) {
  const auto n = static_cast<T>(s.count);
  if (how == Pooling::weighted_mean) return n * static_cast<T>(2 * s.first + s.count + 1) / 2;
  return how == Pooling::mean ? n : std::sqrt(n);
}

// One text's tokens, [count, dim], to one vector.
template <class T>
void pool(Pooling how, const T* x, const Span& s, T* out) {
  const int64_t dim = s.dim;
  if (how == Pooling::cls || how == Pooling::last) {
    std::copy_n(x + (how == Pooling::cls ? 0 : (s.count - 1) * dim), dim, out);
    return;
  }
  const T first = share_of<T>(how, s, 0);
  for (int64_t i = 0; i < dim; ++i) out[i] = first * x[i];
  for (int64_t t = 1; t < s.count; ++t) {
    const T* row = x + t * dim;
    const T share = share_of<T>(how, s, t);
    for (int64_t i = 0; i < dim; ++i)
      out[i] = how == Pooling::max ? std::max(out[i], row[i]) : out[i] + share * row[i];
  }
  if (how == Pooling::max) return;
  const T divisor = divisor_of<T>(how, s);
  for (int64_t i = 0; i < dim; ++i) out[i] /= divisor;
}

// dx += the gradient of pool().
template <class T>
void unpool(Pooling how, const T* x, const Span& s, const T* d_out, T* dx) {
  const int64_t count = s.count, dim = s.dim;
  const int64_t first = how == Pooling::last ? count - 1 : 0, last = how == Pooling::cls ? 1 : count;
  if (how == Pooling::max) {
    for (int64_t i = 0; i < dim; ++i) {
      int64_t best = 0;
      for (int64_t t = 1; t < count; ++t) {
        if (x[t * dim + i] > x[best * dim + i]) best = t;
      }
      dx[best * dim + i] += d_out[i];
    }
    return;
  }
  const bool takes_one = how == Pooling::cls || how == Pooling::last;
  const T divisor = takes_one ? T(1) : divisor_of<T>(how, s);
  for (int64_t t = first; t < last; ++t) {
    const T share = share_of<T>(how, s, t);
    for (int64_t i = 0; i < dim; ++i) dx[t * dim + i] += share * d_out[i] / divisor;
  }
}

template <class T>
class Pool {
 public:
  Pool(std::span<const Pooling> pooling, const Tensor& features, const models::TokenRows& rows,
       int64_t skipped)
      : pooling_(pooling.begin(), pooling.end()),
        skipped_(skipped),
        features_(features.contiguous().detach()),
        ends_(rows.cu_seqlens.to_vector<int64_t>()) {}

  Tensor forward() const {
    Tensor out = Tensor::empty({sequences(), width()}, features_.dtype());
    each([&](size_t p, int64_t first, const Span& s, int64_t at) {
      pool(pooling_[p], features_.data<T>() + first, s, out.data<T>() + at);
    });
    return out;
  }
  Tensor backward(const Tensor& gradient) const {
    const Tensor d_out = gradient.contiguous();
    Tensor dx = Tensor::zeros(features_.shape(), features_.dtype());
    each([&](size_t p, int64_t first, const Span& s, int64_t at) {
      unpool(pooling_[p], features_.data<T>() + first, s, d_out.data<T>() + at, dx.data<T>() + first);
    });
    return dx;
  }

 private:
  int64_t dim() const { return features_.size(1); }
  int64_t sequences() const { return std::ssize(ends_) - 1; }
  int64_t width() const { return std::ssize(pooling_) * dim(); }
  // use(pooling, the first element that is pooled, the tokens, the vector's first element)
  template <class F>
  void each(F&& use) const {
    parallel_for(sequences(), [&](int64_t s, int) {
      const int64_t begin = ends_[static_cast<size_t>(s)] + skipped_, end = ends_[static_cast<size_t>(s) + 1];
      for (size_t p = 0; p < pooling_.size(); ++p) {
        use(p, begin * dim(), Span{skipped_, end - begin, dim()},
            s * width() + static_cast<int64_t>(p) * dim());
      }
    });
  }

  std::vector<Pooling> pooling_;
  int64_t skipped_;
  Tensor features_;
  std::vector<int64_t> ends_;
};

template <class T>
Tensor run_pool(std::span<const Pooling> pooling, const Tensor& features, const models::TokenRows& rows,
                int64_t skipped) {
  const Pool<T> pool(pooling, features, rows, skipped);
  return record({features}, pool.forward(), [pool](const Tensor& d) { return Gradients{pool.backward(d)}; });
}

// y = x / |x|: dx = (dy - y · <y, dy>) / |x|, and dy / 1e-12 where the length is smaller.
template <class T>
Tensor run_normalize(const Tensor& given) {
  const Tensor x = given.contiguous().detach();
  const int64_t rows = x.size(0), dim = x.size(1);
  std::vector<double> lengths;
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x.data<T>() + r * dim;
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
    lengths.push_back(std::sqrt(squares));
    const auto norm = static_cast<T>(std::max(lengths.back(), kLeast));
    for (int64_t i = 0; i < dim; ++i) y.data<T>()[r * dim + i] = row[i] / norm;
  }
  return record({given}, y, [y = y.detach(), lengths = std::move(lengths)](const Tensor& gradient) {
    const Tensor dy = gradient.contiguous();
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    const int64_t dim = y.size(1);
    for (int64_t r = 0; r < y.size(0); ++r) {
      const T *out = y.data<T>() + r * dim, *d = dy.data<T>() + r * dim;
      const double length = lengths[static_cast<size_t>(r)];
      double along = 0;
      for (int64_t i = 0; i < dim && length >= kLeast; ++i) along += static_cast<double>(out[i]) * d[i];
      for (int64_t i = 0; i < dim; ++i) {
        dx.data<T>()[r * dim + i] = static_cast<T>((d[i] - out[i] * along) / std::max(length, kLeast));
      }
    }
    return Gradients{dx};
  });
}

}  // namespace

Tensor pooled(std::span<const Pooling> pooling, const Tensor& features, const models::TokenRows& rows,
              int64_t skipped) {
  MH_CHECK(features.rank() == 2 && features.size(0) == rows.tokens.numel(), ShapeError,
           "pooled: features must be [", rows.tokens.numel(), ", E], got ", features.shape());
  const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
  for (size_t i = 0; skipped > 0 && i + 1 < ends.size(); ++i) {
    MH_CHECK(ends[i + 1] - ends[i] > skipped, ValueError, "pooled: sequence ", i, " has ",
             ends[i + 1] - ends[i], " tokens, none after the ", skipped, " that are left out");
  }
  return features.dtype() == Dtype::f64 ? run_pool<double>(pooling, features, rows, skipped)
                                        : run_pool<float>(pooling, features, rows, skipped);
}

Tensor mixed(std::span<const Tensor> states, std::span<const float> weights) {
  MH_CHECK(!states.empty() && states.size() == weights.size(), ShapeError, "mixed: ", states.size(),
           " states need as many weights, got ", weights.size());
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  MH_CHECK(std::isfinite(1 / total), ValueError, "mixed: the sum of the weights must not be ", total);
  Tensor sum = scale(states[0], weights[0]);
  for (size_t i = 1; i < states.size(); ++i) sum = add(sum, scale(states[i], weights[i]));
  return scale(sum, 1 / total);
}

Tensor normalized_rows(const Tensor& x) {
  MH_CHECK(x.rank() == 2, ShapeError, "normalized_rows: x must be [n, dim], got ", x.shape());
  return x.dtype() == Dtype::f64 ? run_normalize<double>(x) : run_normalize<float>(x);
}

}  // namespace multihead::embed
