#include "multihead/ops/attention/inspect/captured_score_mod.h"

#include <string>

#include "multihead/core/dtype.h"

namespace multihead::detail {

std::vector<ReadTensor> read_tensors(const std::vector<Tensor>& tensors) {
  std::vector<ReadTensor> result;
  int64_t first = 0;
  for (const Tensor& x : tensors) {
    MH_CHECK(x.defined(), ValueError, "score_mod: tensor ", result.size(), " is undefined");
    MH_CHECK(is_floating(x.dtype()), DtypeError, "score_mod: tensor ", result.size(),
             " must be f32, f64, bf16 or f16, got ", x.dtype());
    const Dtype dtype = detail::arithmetic_dtype(x.dtype());
    result.push_back({x.to(dtype).contiguous(), first});
    first += x.numel();
  }
  return result;
}

void throw_read_index(size_t tensor, const Tensor& values, const int64_t* index, size_t rank) {
  std::string at;
  for (size_t axis = 0; axis < rank; ++axis) at += (axis ? ", " : "") + std::to_string(index[axis]);
  throw ShapeError(
      concat("score_mod: the function reads (", at, ") of tensor ", tensor, ", which is ", values.shape()));
}

}  // namespace multihead::detail
