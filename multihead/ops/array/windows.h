// Shifted copies along an axis, and convolutions made of them.
//
// Throws    ShapeError, DtypeError
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// Every step-th element of slice(x, axis, begin, end), step >= 1: a view.
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end, int64_t step);

/// `before` and `after` elements of `value` at the ends of an axis. Any dtype.
Tensor pad(const Tensor& x, int axis, int64_t before, int64_t after, double value = 0);
/// y[i + count] = x[i] along an axis: elements moved beyond the end are lost, `value` comes in. A negative count
/// moves to the front. Any dtype.
Tensor shift(const Tensor& x, int64_t count, int axis, double value = 0);
/// The same, but elements moved beyond the end come in at the other.
Tensor roll(const Tensor& x, int64_t count, int axis);

struct ConvolutionOptions {
  int64_t stride = 1;
  int64_t padding = 0;  ///< zeros at both ends
  int64_t dilation = 1;
  int64_t groups = 1;
};

/// Cross-correlation of sequences: y[b, o, t] = bias[o] + sum over c, k of w[o, c, k] x[b, c, t stride + k dilation].
///
/// Shapes    x [B, C, T], weight [O, C / groups, K], bias [O] or undefined -> [B, O, T']
/// Dtypes    as matmul's
/// Gradient  all three
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const ConvolutionOptions& options = {});

}  // namespace multihead
