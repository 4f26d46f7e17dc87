#include "multihead/ops/narrow-inl.h"

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/ops/shape.h"

namespace multihead::detail {

bool is_narrow(const Tensor& x) {
  return x.defined() && (x.dtype() == Dtype::bf16 || x.dtype() == Dtype::f16);
}

void check_real_or_bf16(const char* op, const char* argument, const Tensor& x) {
  if (x.dtype() != Dtype::bf16) check_real(op, argument, x);
}

bool must_widen(const Tensor& a, const Tensor& b) {
  return (is_narrow(a) || is_narrow(b)) && !(a.dtype() == Dtype::bf16 && b.dtype() == Dtype::bf16);
}

Tensor widened(const Tensor& x) { return is_narrow(x) ? cast(x, Dtype::f32) : x; }

Dtype common_dtype(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() ? a.dtype() : Dtype::f32;
}

Dtype statistics_dtype(Dtype dtype) { return Autocast::active() ? Dtype::f32 : dtype; }

Tensor for_product(const Tensor& x) {
  if (!Autocast::active() || !x.defined() || x.dtype() != Dtype::f32) return x;
  const auto& slot = x.gradient_slot();
  if (Tape::current() == nullptr || slot == nullptr || !slot->leaf) return cast(x, Dtype::bf16);
  Tensor& copy = Tape::current()->copy_of(slot);
  if (!copy.defined()) copy = cast(x, Dtype::bf16);
  return copy;
}

}  // namespace multihead::detail
