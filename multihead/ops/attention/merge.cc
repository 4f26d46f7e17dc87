#include <cmath>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/attention/inspect.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

constexpr const char* kWho = "merge_attention";

void check_parts(const AttentionPart& a, const AttentionPart& b) {
  for (const AttentionPart* part : {&a, &b}) {
    MH_CHECK(part->out.defined() && part->lse.defined(), ValueError, kWho, ": out and lse must be defined");
    const Dtype dtype = detail::arithmetic_dtype(a.out.dtype());
    MH_CHECK(part->out.dtype() == dtype && part->lse.dtype() == dtype, DtypeError, kWho,
             ": out and lse of both must be f32 or all f64, got ", part->out.dtype(), " and ",
             part->lse.dtype());
    const bool fits = part->out.rank() >= 1 && part->lse.shape() == part->out.shape().erased(-1);
    MH_CHECK(fits, ShapeError, kWho, ": lse must have the shape of out ", part->out.shape(),
             " without its last axis, got ", part->lse.shape());
  }
  MH_CHECK(a.out.shape() == b.out.shape(), ShapeError, kWho, ": both parts must have one shape, got ",
           a.out.shape(), " and ", b.out.shape());
}

// e^(part - whole): the share of a part's keys in the whole, 0 where neither has any.
Tensor share_of(const Tensor& part, const Tensor& whole) {
  std::vector<double> shares = part.to_vector<double>();
  const std::vector<double> sums = whole.to_vector<double>();
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool none = std::isinf(shares[i]) && shares[i] < 0;
    shares[i] = none ? 0.0 : std::exp(shares[i] - sums[i]);
  }
  return Tensor::of<double>(part.shape(), shares).to(part.dtype());
}

// With w = share: d_out_part = w · d_out; d_lse_part = w · (d_lse + ⟨d_out, out_part - out⟩).
AttentionPart part_gradient(const AttentionPart& part, const AttentionPart& whole, const Tensor& d_out,
                            const Tensor& d_lse) {
  const Tensor share = share_of(part.lse, whole.lse);
  Shape column = share.shape();
  column.push_back(1);
  AttentionPart d;
  Tensor inner = zeros_like(share);
  if (d_out.defined()) {
    d.out = mul(d_out, reshape(share, column));
    inner = sum(mul(d_out, sub(part.out, whole.out)), -1);
  }
  d.lse = mul(share, d_lse.defined() ? add(inner, d_lse) : inner);
  return d;
}

}  // namespace

AttentionPart merge_attention(const AttentionPart& a, const AttentionPart& b) {
  check_parts(a, b);
  AttentionPart whole{a.out.clone(), a.lse.clone()};
  const Tensor other_out = b.out.contiguous(), other_lse = b.lse.contiguous();
  kernels::attention_merge(a.out.dtype(), a.lse.numel(), a.out.size(-1), whole.out.raw(), whole.lse.raw(),
                           other_out.raw(), other_lse.raw());
  const AttentionPart x{a.out.detach(), a.lse.detach()}, y{b.out.detach(), b.lse.detach()},
      kept{whole.out.detach(), whole.lse.detach()};
  const std::vector<Tensor> results = record_many(
      {a.out, a.lse, b.out, b.lse}, {whole.out, whole.lse},
      [x, y, kept](const std::vector<Tensor>& d) -> Gradients {
        const AttentionPart dx = part_gradient(x, kept, d[0], d[1]), dy = part_gradient(y, kept, d[0], d[1]);
        return {dx.out, dx.lse, dy.out, dy.lse};
      });
  return {results[0], results[1]};
}

}  // namespace multihead
