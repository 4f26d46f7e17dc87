#include "multihead/ops/array/sort.h"

#include "multihead/kernels/array/sort.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

// The places of the `count` first elements in order along the axis.
Tensor places(const char* who, const Tensor& given, int axis, int64_t count, bool descending) {
  axis = given.shape().normalize(axis);
  MH_CHECK(given.dtype() != Dtype::boolean, DtypeError, who, ": x must be of numbers, got bool");
  MH_CHECK(count >= 0 && count <= given.size(axis), ShapeError, who, ": cannot take ", count,
           " elements of axis ", axis, " of ", given.shape());
  const Tensor x = detail::widened(given.detach());
  const Tensor rows = detail::dense(transpose(x, axis, -1));
  Shape shape = rows.shape();
  shape[-1] = count;
  const Tensor found = Tensor::empty(shape, Dtype::i64);
  const int64_t size = rows.size(-1);
  dispatch(rows.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, BFloat16> && !std::is_same_v<T, Float16> && !std::is_same_v<T, bool>) {
      kernels::order(rows.data<T>(), found.data<int64_t>(), size > 0 ? rows.numel() / size : 0, size, count,
                     descending);
    }
  });
  return transpose(found, axis, -1).contiguous();
}

}  // namespace

Tensor argsort(const Tensor& x, int axis, bool descending) {
  return places("argsort", x, axis, x.size(axis), descending);
}
Tensor sort(const Tensor& x, int axis, bool descending) {
  return take_along_axis(x, places("sort", x, axis, x.size(axis), descending), axis);
}
std::vector<Tensor> topk(const Tensor& x, int64_t count, int axis, bool largest) {
  const Tensor found = places("topk", x, axis, count, largest);
  return {take_along_axis(x, found, axis), found};
}

}  // namespace multihead
