#include "multihead/ops/array/windows.h"

#include <algorithm>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

// The places that the k-th column of the kernel sees.
Tensor seen_by(const Tensor& x, int64_t k, int64_t length, const ConvolutionOptions& o) {
  const int64_t begin = k * o.dilation;
  return slice(x, -1, begin, begin + (length - 1) * o.stride + 1, o.stride);
}

// A product of channels, [B, G, C / G, T] with [G, O / G, C / G]; or a scale per channel.
Tensor column(const Tensor& x, const Tensor& weight, int64_t groups) {
  const int64_t in = x.size(1) / groups, out = weight.size(0) / groups;
  if (in == 1 && out == 1) return mul(x, reshape(weight, {groups, 1}));
  const Tensor split = reshape(x, {x.size(0), groups, in, x.size(2)});
  return reshape(matmul(reshape(weight, {groups, out, in}), split), {x.size(0), weight.size(0), x.size(2)});
}

void check_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvolutionOptions& o) {
  MH_CHECK(o.stride >= 1 && o.dilation >= 1 && o.groups >= 1 && o.padding >= 0, ValueError,
           "conv1d: expected stride, dilation and groups >= 1 and padding >= 0, got ", o.stride, ", ",
           o.dilation, ", ", o.groups, " and ", o.padding);
  MH_CHECK(x.rank() == 3 && w.rank() == 3 && w.size(2) >= 1, ShapeError,
           "conv1d: x must be [B, C, T] and weight [O, C / groups, K], got ", x.shape(), " and ", w.shape());
  MH_CHECK(x.size(1) == w.size(1) * o.groups && w.size(0) % o.groups == 0, ShapeError, "conv1d: x ",
           x.shape(), " and weight ", w.shape(), " do not fit ", o.groups, " groups");
  MH_CHECK(!bias.defined() || bias.shape() == Shape({w.size(0)}), ShapeError, "conv1d: bias must be [",
           w.size(0), "], got ", bias.shape());
  constexpr int64_t kMost = int64_t{1} << 40;  // so that no place overflows
  MH_CHECK(o.padding < kMost && o.dilation < kMost && o.stride < kMost, ValueError,
           "conv1d: padding, dilation and stride must be below 2^40, got ", o.padding, ", ", o.dilation,
           " and ", o.stride);
  MH_CHECK(x.size(2) + 2 * o.padding >= (w.size(2) - 1) * o.dilation + 1, ShapeError,
           "conv1d: the kernel spans ", (w.size(2) - 1) * o.dilation + 1, " places, x with its padding has ",
           x.size(2) + 2 * o.padding);
}

}  // namespace

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end, int64_t step) {
  MH_CHECK(step >= 1, ValueError, "slice: step must be at least 1, got ", step);
  axis = x.shape().normalize(axis);
  const Tensor run = slice(x, axis, begin, end);
  if (step == 1) return run;
  const auto every = [axis, step](const Tensor& t) {
    Shape shape = t.shape(), strides = t.strides();
    shape[axis] = shape[axis] / step + (shape[axis] % step != 0);
    if (shape[axis] > 1) strides[axis] *= step;
    return t.as_strided(shape, strides);
  };
  return record({run}, every(run), [every, shape = run.shape()](const Tensor& d) -> Gradients {
    const Tensor dx = Tensor::zeros(shape, d.dtype());
    every(dx).copy_from(d);
    return {dx};
  });
}

Tensor pad(const Tensor& x, int axis, int64_t before, int64_t after, double value) {
  MH_CHECK(before >= 0 && after >= 0, ValueError, "pad: expected before and after >= 0, got ", before,
           " and ", after);
  axis = x.shape().normalize(axis);
  std::vector<Tensor> parts;
  const auto add_part = [&](int64_t count) {
    Shape shape = x.shape();
    shape[axis] = count;
    if (count > 0) parts.push_back(Tensor::full(shape, value, x.dtype()));
  };
  add_part(before);
  parts.push_back(x);
  add_part(after);
  return concat(parts, axis);
}

Tensor shift(const Tensor& x, int64_t count, int axis, double value) {
  const int64_t size = x.size(axis), lost = std::clamp(count, -size, size);
  if (lost >= 0) return pad(slice(x, axis, 0, size - lost), axis, lost, 0, value);
  return pad(slice(x, axis, -lost, size), axis, 0, -lost, value);
}

Tensor roll(const Tensor& x, int64_t count, int axis) {
  const int64_t size = x.size(axis);
  if (size == 0) return x;
  const int64_t last = (count % size + size) % size;
  return concat({slice(x, axis, size - last, size), slice(x, axis, 0, size - last)}, axis);
}

Tensor conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias,
              const ConvolutionOptions& options) {
  check_convolution(input, weight, bias, options);
  const Tensor x = options.padding > 0 ? pad(input, -1, options.padding, options.padding) : input;
  const int64_t span = (weight.size(2) - 1) * options.dilation + 1;
  const int64_t length = (x.size(2) - span) / options.stride + 1;
  Tensor y;
  for (int64_t k = 0; k < weight.size(2); ++k) {
    const Tensor w = reshape(slice(weight, 2, k, k + 1), {weight.size(0), weight.size(1)});
    const Tensor term = column(seen_by(x, k, length, options), w, options.groups);
    y = y.defined() ? add(y, term) : term;
  }
  return bias.defined() ? add(y, reshape(bias, {weight.size(0), 1})) : y;
}

}  // namespace multihead
