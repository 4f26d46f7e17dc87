#include "multihead/models/packed_linear.h"

#include <algorithm>

#include "multihead/core/error.h"

namespace multihead::models {

PackedLinear::PackedLinear(const Tensor& weight, const Tensor& bias, int64_t begin, int64_t end,
                           WeightDtype dtype)
    : out_(end - begin), in_(weight.size(1)), dtype_(dtype) {
  MH_CHECK(dtype != WeightDtype::int8 || in_ <= kernels::kLongestInt8Sum, ValueError,
           "PackedLinear: int8 sums at most ", kernels::kLongestInt8Sum, " products, got rows of ", in_);
  const auto as_f32 = [](const Tensor& x) { return x.detach().to(Dtype::f32).contiguous(); };
  const Tensor w = as_f32(weight);
  packed_ = Tensor::empty({kernels::packed_weight_bytes(dtype, out_, in_) / 4}, Dtype::i32);
  kernels::pack_weight(dtype, w.data<float>() + begin * in_, in_, out_, in_, packed_.data<int32_t>());
  if (!bias.defined()) return;
  bias_ = Tensor::empty({out_});
  std::copy_n(as_f32(bias).data<float>() + begin, out_, bias_.data<float>());
}

void PackedLinear::operator()(const float* x, float* y, const Call& call) const {
  kernels::packed_linear({.x = x,
                          .ldx = in_,
                          .packed = packed_.data<int32_t>(),
                          .dtype = dtype_,
                          .y = y,
                          .ldy = call.stride == 0 ? out_ : call.stride,
                          .rows = call.rows,
                          .out = out_,
                          .in = in_,
                          .bias = bias_.defined() ? bias_.data<float>() : nullptr,
                          .activation = call.activation,
                          .residual = call.residual});
}

}  // namespace multihead::models
