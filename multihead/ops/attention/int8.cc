#include "multihead/ops/attention/int8.h"

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/check-inl.h"

namespace multihead {
namespace {

Shape widened_shape(const char* who, const Tensor& rows) {
  MH_CHECK(rows.defined() && rows.dtype() == Dtype::i32, DtypeError, who, ": rows of int8 must be i32");
  Shape shape = rows.shape();
  MH_CHECK(shape.rank() > 0 && shape[-1] > 1, ShapeError, who,
           ": rows of int8 must be [..., D / 4 + 1], got ", rows.shape());
  shape[-1] = kernels::int8_row_dim(shape[-1]);
  return shape;
}

constexpr int64_t kRowsOfTask = 64;

}  // namespace

Tensor to_int8_rows(const Tensor& x) {
  MH_CHECK(x.defined() && is_floating(x.dtype()), DtypeError, "to_int8_rows: x must be floating");
  Shape shape = x.shape();
  MH_CHECK(shape.rank() > 0 && shape[-1] > 0 && shape[-1] % 4 == 0, ShapeError,
           "to_int8_rows: x must be [..., D], D a multiple of 4, got ", x.shape());
  const int64_t dim = shape[-1], words = kernels::int8_row_words(dim);
  shape[-1] = words;
  const Tensor from = x.detach().to(Dtype::f32).contiguous(), to = Tensor::empty(shape, Dtype::i32);
  const int64_t rows = to.numel() / words;
  parallel_for((rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t task, int) {
    for (int64_t r = task * kRowsOfTask; r < std::min(rows, (task + 1) * kRowsOfTask); ++r) {
      kernels::quantize_int8_row(from.data<float>() + r * dim, dim, to.data<int32_t>() + r * words);
    }
  });
  return to;
}

Tensor from_int8_rows(const Tensor& rows) {
  const Shape shape = widened_shape("from_int8_rows", rows);
  const int64_t dim = shape[-1], words = rows.size(-1);
  const Tensor from = rows.contiguous(), to = Tensor::empty(shape);
  for (int64_t r = 0; r < from.numel() / words; ++r) {
    kernels::widen_int8_row(from.data<int32_t>() + r * words, dim, to.data<float>() + r * dim);
  }
  return to;
}

Tensor attention_int8(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options, const ScoreMod& score_mod) {
  constexpr const char* who = "attention_int8";
  MH_CHECK(query.defined() && query.dtype() == Dtype::f32, DtypeError, who, ": query must be f32");
  const detail::AttentionSizes s = detail::check_attention_shapes(who, query.shape(), widened_shape(who, key),
                                                                  widened_shape(who, value), options.layout);
  detail::AttentionCall call = detail::make_call(who, s, query.detach(), key, value, options, score_mod);
  detail::compute_attention(call, options);
  return call.out;
}

}  // namespace multihead
