#include "multihead/nn/packed_linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace {

constexpr int64_t kFirstBlock = 1 << 18, kLargestBlock = 1 << 23;  // 1 MiB, doubled up to 32 MiB

const float* data_or_null(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

// Throws ValueError unless f32 weights in rows of `in` can be packed so.
void check_packable(const kernels::WeightFormat& format, const float* weights, int64_t count, int64_t in) {
  MH_CHECK(format.of_floats(), ValueError, "PackedLinear: ", format.name, " comes from GGUF files alone");
  MH_CHECK(format.longest_row == 0 || in <= format.longest_row, ValueError, "PackedLinear: ", format.name,
           " sums at most ", format.longest_row, " products, got rows of ", in);
  for (int64_t i = 0; i < count && format.beyond > 0; ++i) {
    MH_CHECK(!(std::abs(weights[i]) >= format.beyond) || std::isinf(weights[i]), ValueError,
             "PackedLinear: ", format.name, " rounds ", format.beyond, " and more to infinity, a weight is ",
             weights[i]);
  }
}

Tensor empty_packed(WeightDtype dtype, int64_t out, int64_t in) {
  return PackedBlocks::empty(kernels::packed_weight_bytes(dtype, out, in) / 4);
}

// A part of a product: f32 of a shape.
void check_part(const char* what, const Tensor& x, const Shape& expected) {
  MH_CHECK(x.dtype() == Dtype::f32, DtypeError, "PackedLinear: ", what, " must be f32, got ", x.dtype());
  MH_CHECK(x.shape() == expected, ShapeError, "PackedLinear: ", what, " must be ", expected, ", got ",
           x.shape());
}

}  // namespace

PackedLinear::PackedLinear(const Tensor& weight, WeightDtype dtype)
    : out_(weight.size(0)), in_(weight.size(1)), dtype_(dtype) {
  const Tensor w = weight.detach().to(Dtype::f32).contiguous();
  check_packable(kernels::format_of(dtype), w.data<float>(), out_ * in_, in_);
  packed_ = empty_packed(dtype, out_, in_);
  kernels::pack_weight(dtype, w.data<float>(), in_, out_, in_, packed_.data<int32_t>());
}

PackedLinear::PackedLinear(const StoredWeight& weight, int64_t out, int64_t in) : out_(out), in_(in) {
  const std::optional<WeightDtype> dtype = kernels::packed_dtype_of(weight.format);
  MH_CHECK(dtype, ValueError, "PackedLinear: no packed format takes over blocks of ", weight.format.name);
  dtype_ = *dtype;
  packed_ = empty_packed(dtype_, out, in);
  kernels::pack_stored(weight, out, in, packed_.data<int32_t>());
}

PackedLinear::PackedLinear(const Tensor& packed, int64_t out, int64_t in, WeightDtype dtype)
    : out_(out), in_(in), dtype_(dtype) {
  MH_CHECK(kernels::format_of(dtype).functions->is_portable, ValueError, "PackedLinear: packed ",
           kernels::name(dtype), " weights cannot be stored");
  const Shape expected = {kernels::packed_weight_bytes(dtype, out, in) / 4};
  MH_CHECK(packed.dtype() == Dtype::i32 && packed.shape() == expected, ShapeError,
           "PackedLinear: packed must be i32 ", expected, ", got ", packed.dtype(), ' ', packed.shape());
  packed_ = PackedBlocks::taken(packed);
}

// Large ones are large enough themselves.
bool PackedBlocks::takes(int64_t words) { return current_ != nullptr && words <= kLargestBlock / 4; }

Tensor PackedBlocks::taken(const Tensor& packed) {
  if (!takes(packed.numel())) return packed.contiguous();
  const Tensor to = empty(packed.numel());
  to.copy_from(packed);
  return to;
}

Tensor PackedBlocks::empty(int64_t words) {
  if (!takes(words)) return Tensor::empty({words}, Dtype::i32);
  Tensor& block = current_->block_;
  if (!block.defined() || current_->used_ + words > block.numel()) {
    const int64_t next = block.defined() ? std::min(2 * block.numel(), kLargestBlock) : kFirstBlock;
    block = Tensor::empty({std::max(next, words)}, Dtype::i32), current_->used_ = 0;
  }
  return block.as_strided({words}, {1}, std::exchange(current_->used_, current_->used_ + words));
}

Tensor PackedLinear::operator()(const Tensor& x, const Tensor& bias,
                                const multihead::LinearOptions& fused) const {
  MH_CHECK(!is_recording({x, bias, fused.residual}), ValueError, "linear: weights packed as ",
           kernels::name(dtype_), " cannot be trained; load the model without packing");
  MH_CHECK(x.rank() > 0 && x.size(-1) == in_, ShapeError, "linear: x must be [..., ", in_,
           "] to match a packed weight [", out_, ", ", in_, "], got ", x.shape());
  const Tensor wide = x.dtype() == Dtype::bf16 ? x.to(Dtype::f32) : x;  // what Autocast makes of attention
  check_part("x", wide, x.shape());
  Shape shape = x.shape();
  shape[-1] = out_;
  if (bias.defined()) check_part("bias", bias, {out_});
  if (fused.residual.defined()) check_part("residual", fused.residual, shape);
  const bool plain = fused.input_activation == Activation::none;  // activate() copies then, too
  const Tensor input = (plain ? wide.detach() : activate(wide.detach(), fused.input_activation)).contiguous();
  const Tensor y = Tensor::empty(shape), b = bias.defined() ? bias.contiguous() : Tensor(),
               residual = fused.residual.defined() ? fused.residual.contiguous() : Tensor();
  kernels::packed_linear({.x = input.data<float>(),
                          .ldx = in_,
                          .packed = packed_.data<int32_t>(),
                          .dtype = dtype_,
                          .y = y.data<float>(),
                          .ldy = out_,
                          .rows = shape.erased(-1).numel(),
                          .out = out_,
                          .in = in_,
                          .bias = data_or_null(b),
                          .activation = fused.activation,
                          .residual = data_or_null(residual)});
  return y;
}

Tensor PackedLinear::rows(const Tensor& ids) const {
  MH_CHECK(kernels::format_of(dtype_).has_rows(), ValueError, "PackedLinear: rows of ", kernels::name(dtype_),
           " are not read alone");
  MH_CHECK(ids.dtype() == Dtype::i64 || ids.dtype() == Dtype::i32, DtypeError,
           "embedding: ids must be i64 or i32, got ", ids.dtype());
  const Tensor numbers = ids.to(Dtype::i64).contiguous();
  const int64_t* id = numbers.data<int64_t>();
  Shape shape = ids.shape();
  shape.push_back(in_);
  const Tensor y = Tensor::empty(shape);
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    MH_CHECK(id[i] >= 0 && id[i] < out_, ValueError, "embedding: ids must be in [0, ", out_, "), got ", id[i],
             " at position ", i);
    kernels::unpack_weight_row(dtype_, packed_.data<int32_t>(), id[i], out_, in_, y.data<float>() + i * in_);
  }
  return y;
}

}  // namespace multihead::nn
