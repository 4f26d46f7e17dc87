#include "multihead/ops/array/scan.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/array/scan.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {

Tensor cumsum(const Tensor& input, int axis, bool reverse) {
  if (detail::is_narrow(input)) return cast(cumsum(detail::widened(input), axis, reverse), input.dtype());
  detail::check_real("cumsum", "x", input);
  axis = input.shape().normalize(axis);
  const Tensor x = detail::dense(input), y = empty_like(x);
  kernels::ScanSizes sizes{1, x.size(axis), 1, reverse};
  for (int i = 0; i < axis; ++i) sizes.outer *= x.size(i);
  for (int i = axis + 1; i < x.rank(); ++i) sizes.inner *= x.size(i);
  detail::with_data([&](auto* from, auto* to) { kernels::cumsum(from, to, sizes); }, x, y);
  return record({input}, y,
                [axis, reverse](const Tensor& dy) -> Gradients { return {cumsum(dy, axis, !reverse)}; });
}

}  // namespace multihead
