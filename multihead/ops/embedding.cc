#include "multihead/ops/embedding.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/embedding.h"
#include "multihead/ops/dispatch-inl.h"

namespace multihead {

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  MH_CHECK(weight.rank() == 2, ShapeError, "embedding: weight must be [V, E], got ", weight.shape());
  MH_CHECK(ids.dtype() == Dtype::i64 || ids.dtype() == Dtype::i32, DtypeError,
           "embedding: ids must be i64 or i32, got ", ids.dtype());
  const Tensor numbers = ids.to(Dtype::i64);
  const int64_t rows = weight.size(0), size = weight.size(1), count = numbers.numel();
  const int64_t* id = numbers.data<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    MH_CHECK(id[i] >= 0 && id[i] < rows, ValueError, "embedding: ids must be in [0, ", rows, "), got ", id[i],
             " at position ", i);
  }
  Shape shape = ids.shape();
  shape.push_back(size);
  const Tensor table = detail::dense(weight);
  const Tensor y = Tensor::empty(shape, weight.dtype());
  kernels::gather_rows(table.raw(), id, y.raw(), count, static_cast<size_t>(size) * size_of(weight.dtype()));
  return record({weight}, y, [numbers, rows, size, count](const Tensor& d) -> Gradients {
    const Tensor dy = detail::dense(d);
    const Tensor d_weight = Tensor::empty({rows, size}, dy.dtype());
    const kernels::ScatterArgs args{numbers.data<int64_t>(), count, rows, size};
    detail::with_data([&](auto* d, auto* to) { kernels::scatter_add_rows(d, to, args); }, dy, d_weight);
    return {d_weight};
  });
}

}  // namespace multihead
