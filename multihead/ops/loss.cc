#include "multihead/ops/loss.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/reduce/cross_entropy.h"
#include "multihead/kernels/reduce/sum.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::dense;
using detail::dispatch_real;

constexpr int64_t kChunkElements = int64_t{4} << 20;

// Checked targets as i64 in row-major order, and how many of them count.
struct Targets {
  Tensor ids;
  int64_t counted = 0;
};

Targets check_targets(const char* who, const Tensor& targets, const Shape& expected, int64_t classes,
                      const CrossEntropyOptions& options) {
  MH_CHECK(targets.dtype() == Dtype::i64 || targets.dtype() == Dtype::i32, DtypeError, who,
           ": targets must be i64 or i32, got ", targets.dtype());
  MH_CHECK(targets.shape() == expected, ShapeError, who, ": targets must be ", expected, ", got ",
           targets.shape());
  MH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, ValueError, who,
           ": label_smoothing must be in [0, 1], got ", options.label_smoothing);
  Targets result{targets.to(Dtype::i64), 0};
  const int64_t* id = result.ids.data<int64_t>();
  for (int64_t i = 0; i < result.ids.numel(); ++i) {
    if (id[i] == options.ignore_index) continue;
    MH_CHECK(id[i] >= 0 && id[i] < classes, ValueError, who, ": targets must be in [0, ", classes, ") or ",
             options.ignore_index, " (ignore_index), got ", id[i], " at position ", i);
    ++result.counted;
  }
  return result;
}

// The factor of every row's loss.
double row_scale(Reduction reduction, int64_t counted) {
  if (reduction != Reduction::mean) return 1;
  return counted > 0 ? 1 / static_cast<double>(counted) : 0;
}

template <class T>
kernels::CrossEntropyArgs<T> kernel_args(const Targets& targets, int64_t classes,
                                         const CrossEntropyOptions& options) {
  return {.logits = nullptr,
          .targets = targets.ids.data<int64_t>(),
          .rows = targets.ids.numel(),
          .classes = classes,
          .ignore_index = options.ignore_index,
          .smoothing = options.label_smoothing,
          .losses = nullptr,
          .d_logits = nullptr,
          .scale = row_scale(options.reduction, targets.counted)};
}

void scale_in_place(const Tensor& x, double factor) {
  if (factor == 1) return;
  detail::with_data([&](auto* data) { kernels::affine(data, data, x.numel(), factor, 0); }, x);
}

// rows of x [N, V] times factors [N].
void scale_rows(const Tensor& x, const Tensor& factors) {
  const Shape shape{factors.numel(), x.size(-1)};
  const kernels::BroadcastLayout layout{shape, contiguous_strides(shape), {1, 0}};
  detail::with_data([&](auto* to, auto* by) { kernels::binary(kernels::Binary::mul, to, by, to, layout); }, x,
                    factors);
}

Tensor reduce(const Tensor& losses, Reduction reduction, double scale) {
  if (reduction == Reduction::none) return losses;
  double total = 0;
  detail::with_data([&](auto* each) { total = kernels::sum(each, losses.numel()); }, losses);
  return Tensor::full({}, total * scale, losses.dtype());
}

void check_logits(const Tensor& logits) {
  detail::check_real("cross_entropy", "logits", logits);
  MH_CHECK(logits.rank() > 0, ShapeError, "cross_entropy: logits must be [..., V], got ", logits.shape());
}

// The gradient goes to `d_logits`, which may be the logits' own memory, unless it is undefined.
Tensor cross_entropy_into(const Tensor& logits, const Tensor& d_logits, const Targets& targets,
                          const CrossEntropyOptions& options) {
  const Tensor x = dense(logits);
  const Tensor losses = Tensor::empty(targets.ids.shape(), x.dtype());
  double scale = 0;
  dispatch_real(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::CrossEntropyArgs<T> args = kernel_args<T>(targets, x.size(-1), options);
    args.logits = x.data<T>();
    args.losses = losses.data<T>();
    args.d_logits = detail::data_or_null<T>(d_logits);
    scale = args.scale;
    kernels::cross_entropy(args);
  });
  const Reduction reduction = options.reduction;
  return record({logits}, reduce(losses, reduction, scale),
                [d_logits, reduction](const Tensor& dy) -> Gradients {
                  if (reduction == Reduction::none) {
                    scale_rows(d_logits, dense(dy));
                  } else {
                    scale_in_place(d_logits, dy.item());
                  }
                  return {d_logits};
                });
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  if (detail::is_narrow(logits)) return cross_entropy(detail::widened(logits), targets, options);
  check_logits(logits);
  const Targets checked =
      check_targets("cross_entropy", targets, logits.shape().erased(-1), logits.size(-1), options);
  const Tensor d_logits = is_recording({logits}) ? empty_like(logits) : Tensor();
  return cross_entropy_into(logits, d_logits, checked, options);
}

Tensor cross_entropy(Tensor&& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  if (detail::is_narrow(logits)) return cross_entropy(detail::widened(logits), targets, options);
  if (!logits.defined() || !is_recording({logits}) || !logits.is_unique() || !logits.is_contiguous()) {
    return cross_entropy(static_cast<const Tensor&>(logits), targets, options);
  }
  check_logits(logits);
  const Targets checked =
      check_targets("cross_entropy", targets, logits.shape().erased(-1), logits.size(-1), options);
  return cross_entropy_into(logits, logits.detach(), checked, options);
}

namespace {

// Consecutive rows of a row-major matrix.
Tensor rows_of(const Tensor& x, int64_t begin, int64_t count) {
  const int64_t width = x.size(-1);
  return x.as_strided({count, width}, {width, 1}, begin * width);
}

// c = op(a) · op(b) [+ c], all row-major.
struct Product {
  const Tensor &a, &b, &c;
  kernels::Transpose ta = kernels::Transpose::no, tb = kernels::Transpose::no;
  bool accumulate = false;
};

void multiply(const Product& p) {
  kernels::gemm_mixed({.a = detail::matrix_of(p.a),
                       .lda = p.a.size(1),
                       .ta = p.ta,
                       .b = detail::matrix_of(p.b),
                       .ldb = p.b.size(1),
                       .tb = p.tb,
                       .c = detail::matrix_of(p.c),
                       .ldc = p.c.size(1),
                       .m = p.c.size(0),
                       .n = p.c.size(1),
                       .k = p.a.size(p.ta == kernels::Transpose::yes ? 0 : 1),
                       .accumulate = p.accumulate});
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& input, const Tensor& matrix, const Tensor& targets,
                            const CrossEntropyOptions& options) {
  constexpr const char* who = "linear_cross_entropy";
  using kernels::Transpose;
  const Tensor features = detail::for_product(input), weight = detail::for_product(matrix);
  detail::check_real_or_bf16(who, "x", features);
  detail::check_same_dtype(who, "weight", weight, "x", features);
  MH_CHECK(weight.rank() == 2 && features.rank() > 0 && features.size(-1) == weight.size(1), ShapeError, who,
           ": x must be [..., E] and weight [V, E], got ", features.shape(), " and ", weight.shape());
  MH_CHECK(options.reduction != Reduction::none, ValueError, who, ": reduction must be mean or sum");
  const int64_t classes = weight.size(0);
  const Targets checked = check_targets(who, targets, features.shape().erased(-1), classes, options);
  const int64_t rows = checked.ids.numel();
  const int64_t chunk =
      std::clamp<int64_t>(kChunkElements / std::max<int64_t>(classes, 1), 1, std::max<int64_t>(rows, 1));
  const Tensor x = dense(features), w = dense(weight);
  const bool recording = is_recording({features, weight});
  const Dtype dtype = detail::arithmetic_dtype(x.dtype());  // of logits, losses and gradients
  const Tensor dx = recording && features.requires_grad() ? Tensor::empty(x.shape(), dtype) : Tensor();
  const Tensor dw = recording && weight.requires_grad() ? Tensor::zeros(w.shape(), dtype) : Tensor();
  const Tensor all_logits = Tensor::empty({chunk, classes}, dtype), losses = Tensor::empty({rows}, dtype);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const Tensor part = rows_of(x, begin, count), logits = rows_of(all_logits, 0, count);
    multiply({.a = part, .b = w, .c = logits, .tb = Transpose::yes});
    dispatch_real(dtype, [&](auto zero) {
      using T = decltype(zero);
      kernels::CrossEntropyArgs<T> args = kernel_args<T>(checked, classes, options);
      args.logits = logits.data<T>();
      args.targets += begin;
      args.rows = count;
      args.losses = losses.data<T>() + begin;
      args.d_logits = recording ? logits.data<T>() : nullptr;
      kernels::cross_entropy(args);
    });
    // The logits are their gradients now.
    if (dx.defined()) multiply({.a = logits, .b = w, .c = rows_of(dx, begin, count)});
    if (dw.defined()) multiply({.a = logits, .b = part, .c = dw, .ta = Transpose::yes, .accumulate = true});
  }
  const Tensor loss = reduce(losses, options.reduction, row_scale(options.reduction, checked.counted));
  return record({features, weight}, loss, [dx, dw](const Tensor& dy) -> Gradients {
    for (const Tensor& d : {dx, dw}) {
      if (d.defined()) scale_in_place(d, dy.item());
    }
    return {dx, dw};
  });
}

}  // namespace multihead
