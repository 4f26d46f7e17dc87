#include "multihead/ops/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/recurrence/linear_attention.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

constexpr const char* kLinearAttention = "linear_attention";

using kernels::LinearAttentionSizes;
using Options = LinearAttentionOptions;

void check_option(const char* name, const Tensor& x, const Tensor& q, const Shape& shape) {
  if (!x.defined()) return;
  MH_CHECK(x.shape() == shape, ShapeError, kLinearAttention, ": ", name, " must be ", shape, ", got ",
           x.shape());
  MH_CHECK(x.dtype() == q.dtype(), DtypeError, kLinearAttention, ": ", name, " must be ", q.dtype(),
           " like q, got ", x.dtype());
}

LinearAttentionSizes checked_sizes(const Tensor& q, const Tensor& k, const Tensor& v, const Options& o) {
  MH_CHECK(q.rank() == 4 && k.rank() == 4 && v.rank() == 4, ShapeError, kLinearAttention,
           ": q must be [B, H, T, D], k [B, Hkv, T, D] and v [B, Hkv, T, Dv], got ", q.shape(), ", ",
           k.shape(), " and ", v.shape());
  const Shape keys = {q.size(0), k.size(1), q.size(2), q.size(3)};
  MH_CHECK(k.shape() == keys && v.shape() == Shape({keys[0], keys[1], keys[2], v.size(3)}), ShapeError,
           kLinearAttention, ": q ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
           " do not fit each other");
  MH_CHECK(keys[1] > 0 && q.size(1) % keys[1] == 0, ShapeError, kLinearAttention, ": ", q.size(1),
           " heads of queries cannot share ", keys[1], " of keys; repeat q and k if v has more heads");
  const bool is_delta = o.rule != LinearRule::retention;
  MH_CHECK(is_delta || !o.beta.defined(), ValueError, kLinearAttention,
           ": retention has no beta; scale v, or use delta");
  MH_CHECK(o.rule != LinearRule::delta || !o.log_decay.defined(), ValueError, kLinearAttention,
           ": delta has no log_decay; use gated_delta");
  MH_CHECK(o.rule != LinearRule::gated_delta || o.log_decay.defined(), ValueError, kLinearAttention,
           ": gated_delta needs log_decay; use delta");
  MH_CHECK(o.chunk >= 1, ValueError, kLinearAttention, ": chunk must be at least 1, got ", o.chunk);
  const Shape tokens = keys.erased(3);
  const bool per_row = o.log_decay.defined() && o.log_decay.rank() == 4;
  check_option("log_decay", o.log_decay, q, per_row ? keys : tokens);
  check_option("beta", o.beta, q, tokens);
  check_option("state", o.state, q, {keys[0], keys[1], keys[3], v.size(3)});
  return {.batch = keys[0],
          .heads = q.size(1),
          .kv_heads = keys[1],
          .length = keys[2],
          .dim = keys[3],
          .value_dim = v.size(3),
          .is_delta = is_delta,
          .decays = !o.log_decay.defined() ? 0
                    : per_row              ? keys[3]
                                           : 1,
          .scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(keys[3], 1)))),
          .chunk = o.chunk,
          .lengths = nullptr};
}

Tensor checked_lengths(const Tensor& given, const LinearAttentionSizes& s) {
  if (!given.defined()) return given;
  MH_CHECK(given.shape() == Shape({s.batch}) && (given.dtype() == Dtype::i64 || given.dtype() == Dtype::i32),
           ShapeError, kLinearAttention, ": lengths must be i64 [", s.batch, "], got ", given.dtype(), " ",
           given.shape());
  const Tensor lengths = given.to(Dtype::i64).contiguous();
  for (const int64_t n : lengths.span<int64_t>()) {
    MH_CHECK(n >= 0 && n <= s.length, ValueError, kLinearAttention, ": lengths must be 0 to ", s.length,
             ", got ", n);
  }
  return lengths;
}

// What forward and backward read, row-major.
struct Operands {
  Tensor q, k, v, decay, beta, state, lengths;

  template <class T>
  kernels::LinearAttentionInputs<T> inputs() const {
    using detail::data_or_null;
    return {q.data<T>(),           k.data<T>(),           v.data<T>(), data_or_null<T>(decay),
            data_or_null<T>(beta), data_or_null<T>(state)};
  }
};

Tensor dense_or_none(const Tensor& x) { return x.defined() ? detail::dense(x.detach()) : x; }

Tensor zeros_with(int64_t blocks, const Tensor& x, bool wanted = true) {
  if (!x.defined() || !wanted) return {};
  Shape shape = x.shape();
  return Tensor::zeros(shape.inserted(0, blocks), x.dtype());
}

Tensor total(const Tensor& blocks) {
  if (!blocks.defined()) return blocks;
  return blocks.size(0) == 1 ? reshape(blocks, blocks.shape().erased(0)) : sum(blocks, 0);
}

Gradients backward(const Operands& x, const Tensor& kept, const LinearAttentionSizes& s,
                   const std::vector<Tensor>& d) {
  const Tensor d_out = d[0].defined() ? detail::dense(d[0])
                                      : Tensor::zeros({s.batch, s.heads, s.length, s.value_dim}, x.q.dtype());
  const Tensor d_state = d[1].defined() ? detail::dense(d[1]) : Tensor();
  const int64_t blocks = std::max<int64_t>(s.blocks(), 1);
  const Tensor dq = zeros_with(blocks, x.q), dk = zeros_with(blocks, x.k), dv = zeros_like(x.v);
  const Tensor d_decay = zeros_with(blocks, x.decay), d_beta = zeros_with(blocks, x.beta);
  const Tensor d_first = x.state.defined() ? zeros_like(x.state) : Tensor();
  detail::dispatch_real(x.q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using detail::data_or_null;
    const kernels::LinearAttentionGradients<T> to = {d_out.data<T>(),
                                                     data_or_null<T>(d_state),
                                                     dq.data<T>(),
                                                     dk.data<T>(),
                                                     dv.data<T>(),
                                                     data_or_null<T>(d_decay),
                                                     data_or_null<T>(d_beta),
                                                     data_or_null<T>(d_first)};
    kernels::linear_attention_backward(x.inputs<T>(), kept.data<T>(), to, s);
  });
  return {total(dq), total(dk), dv, total(d_decay), total(d_beta), d_first};
}

std::vector<Tensor> run(const Tensor& q, const Tensor& k, const Tensor& v, const Options& o) {
  detail::check_real(kLinearAttention, "q", q);
  detail::check_same_dtype(kLinearAttention, "k", k, "q", q);
  detail::check_same_dtype(kLinearAttention, "v", v, "q", q);
  MH_CHECK(!o.scale || std::isfinite(*o.scale), ValueError, kLinearAttention, ": scale must be finite, got ",
           o.scale.value_or(0));
  LinearAttentionSizes s = checked_sizes(q, k, v, o);
  const Operands x = {dense_or_none(q),
                      dense_or_none(k),
                      dense_or_none(v),
                      o.log_decay.defined() ? exp(dense_or_none(o.log_decay)) : Tensor(),
                      dense_or_none(o.beta),
                      dense_or_none(o.state),
                      checked_lengths(o.lengths, s)};
  s.lengths = detail::data_or_null<int64_t>(x.lengths);
  const Tensor out = Tensor::empty({s.batch, s.heads, s.length, s.value_dim}, q.dtype());
  const Tensor state = Tensor::empty({s.batch, s.kv_heads, s.dim, s.value_dim}, q.dtype());
  const bool recording = is_recording({q, k, v, o.log_decay, o.beta, o.state});
  const Tensor kept =
      recording ? Tensor::empty({s.batch, s.kv_heads, s.chunks(), s.dim, s.value_dim}, q.dtype()) : Tensor();
  detail::dispatch_real(q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::linear_attention(x.inputs<T>(), out.data<T>(), state.data<T>(), detail::data_or_null<T>(kept),
                              s);
  });
  return record_many({q, k, v, o.log_decay, o.beta, o.state}, {out, state},
                     [x, kept, s](const std::vector<Tensor>& d) { return backward(x, kept, s, d); });
}

}  // namespace

std::vector<Tensor> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Options& options) {
  if (!detail::is_narrow(q) && !detail::is_narrow(k) && !detail::is_narrow(v)) return run(q, k, v, options);
  Options wide = options;
  for (Tensor* x : {&wide.log_decay, &wide.beta, &wide.state}) {
    if (x->defined()) *x = detail::widened(*x);
  }
  std::vector<Tensor> result = run(detail::widened(q), detail::widened(k), detail::widened(v), wide);
  result[0] = cast(result[0], q.dtype());
  return result;
}

}  // namespace multihead
