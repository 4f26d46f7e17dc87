#include "multihead/ops/dropout.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/elementwise/dropout.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

// A mask, and of a sequence that is cut over ranks the pieces: elements of the tensor, and where they lie in
// the whole.
struct Dropout {
  struct Piece {
    int64_t begin, count, first;
  };
  kernels::DropoutMask mask;
  std::vector<Piece> pieces;
};

Dropout draw(const char* who, const Tensor& x, double p, Rng& rng) {
  Dropout d{{rng.next(), p}, {}};
  const ContextScope* const scope = ContextScope::current();
  if (scope == nullptr) {
    d.pieces = {{0, x.numel(), 0}};
    return d;
  }
  const SequenceShards& shards = scope->shards();
  const int rank = scope->group().rank();
  const int64_t rows = shards.rows(rank), row = x.numel() / std::max<int64_t>(1, x.size(0) * rows);
  MH_CHECK(x.rank() >= 2 && x.size(1) == rows, ShapeError, who, ": in a ContextScope x must be [B, ", rows,
           ", ...], got ", x.shape());
  const int64_t length = (shards.length() + 127) / 128 * 128;  // as DropoutMask::first has it
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (const int c : shards.chunks_of(rank)) {
      const auto own = shards.own_rows(c);
      d.pieces.push_back(
          {(b * rows + own.begin) * row, own.count() * row, (b * length + shards.chunk(c).begin) * row});
    }
  }
  return d;
}

void check(const char* who, const Tensor& x, double p) {
  detail::check_real_or_bf16(who, "x", x);
  MH_CHECK(p >= 0 && p <= 1, ValueError, who, ": p must be in [0, 1], got ", p);
}

// f(piece, its mask) for each piece.
template <class F>
void for_pieces(const Dropout& d, F&& f) {
  for (const Dropout::Piece& piece : d.pieces) {
    kernels::DropoutMask mask = d.mask;
    mask.first = piece.first;
    f(piece, mask);
  }
}

template <class From, class To>
void run_as(const Tensor& x, const Tensor& residual, const Tensor& y, const Dropout& d) {
  const To* const more = detail::data_or_null<To>(residual);
  for_pieces(d, [&](const Dropout::Piece& piece, const kernels::DropoutMask& mask) {
    kernels::dropout(x.data<From>() + piece.begin, more != nullptr ? more + piece.begin : nullptr,
                     y.data<To>() + piece.begin, piece.count, mask);
  });
}

void run(const Tensor& x, const Tensor& residual, const Tensor& y, const Dropout& d) {
  if (x.dtype() == Dtype::f64) return run_as<double, double>(x, residual, y, d);
  if (x.dtype() == Dtype::f32) return run_as<float, float>(x, residual, y, d);
  if (residual.defined()) return run_as<BFloat16, float>(x, residual, y, d);
  for_pieces(d, [&](const Dropout::Piece& piece, const kernels::DropoutMask& mask) {
    kernels::dropout(x.data<BFloat16>() + piece.begin, y.data<BFloat16>() + piece.begin, piece.count, mask);
  });
}

Tensor masked(const Tensor& dy, const Dropout& mask) {
  const Tensor dx = Tensor::empty(dy.shape(), dy.dtype());
  run(detail::dense(dy), {}, dx, mask);
  return dx;
}

void activate_into(Activation activation, const Tensor& x, const Tensor& y) {
  detail::dispatch_real(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::activate(activation, x.data<T>(), y.data<T>(), x.numel());
  });
}

}  // namespace

Tensor dropout(const Tensor& input, double p, Rng* rng) {
  if (input.dtype() == Dtype::f16) return cast(dropout(detail::widened(input), p, rng), Dtype::f16);
  check("dropout", input, p);
  if (rng == nullptr || p == 0) return input;
  const Dropout mask = draw("dropout", input, p, *rng);
  const Tensor y = Tensor::empty(input.shape(), input.dtype());
  run(detail::dense(input), {}, y, mask);
  return record({input}, y, [mask](const Tensor& dy) -> Gradients { return {masked(dy, mask)}; });
}

Tensor activate_dropout(const Tensor& input, Activation activation, double p, Rng* rng) {
  if (detail::is_narrow(input)) {
    return cast(activate_dropout(detail::widened(input), activation, p, rng), input.dtype());
  }
  check("activate_dropout", input, p);
  if (rng == nullptr || p == 0) return activate(input, activation);
  const Dropout mask = draw("activate_dropout", input, p, *rng);
  const Tensor x = detail::dense(input), y = Tensor::empty(input.shape(), input.dtype());
  activate_into(activation, x, y);
  run(y, {}, y, mask);
  // A dropped or negative element of relu is 0 in y, and its gradient is 0 as well. But what was widened is
  // kept as it was before.
  const bool widened = input.requires_grad() && input.gradient_slot()->rebuild;
  const bool from_y = activation == Activation::relu && !widened;
  detail::Kept kept = from_y ? detail::Kept({}, y.detach()) : detail::Kept(input, x);
  return record(
      {input}, y, [kept = std::move(kept), activation, mask](const Tensor& dy) mutable -> Gradients {
        const Tensor saved = kept.take();
        const Tensor dx = masked(dy, mask);
        detail::dispatch_real(dx.dtype(), [&](auto zero) {
          using T = decltype(zero);
          kernels::activate_backward(activation, saved.data<T>(), dx.data<T>(), dx.data<T>(), dx.numel());
        });
        return {dx};
      });
}

Tensor add_dropout(const Tensor& residual, const Tensor& input, double p, Rng* rng) {
  const bool joins = residual.dtype() == Dtype::f32 && input.dtype() == Dtype::bf16;
  if (!joins && (detail::is_narrow(residual) || detail::is_narrow(input))) {
    return cast(add_dropout(detail::widened(residual), detail::widened(input), p, rng),
                detail::common_dtype(residual, input));
  }
  check("add_dropout", input, p);
  if (!joins) detail::check_same_dtype("add_dropout", "residual", residual, "x", input);
  MH_CHECK(residual.shape() == input.shape(), ShapeError, "add_dropout: residual must be ", input.shape(),
           " like x, got ", residual.shape());
  if (rng == nullptr || p == 0) return add(residual, input);
  const Dropout mask = draw("add_dropout", input, p, *rng);
  const Tensor y = Tensor::empty(input.shape(), residual.dtype());
  run(detail::dense(input), detail::dense(residual), y, mask);
  return record({residual, input}, y, [mask](const Tensor& dy) -> Gradients {
    return {dy, masked(dy, mask)};
  });
}

}  // namespace multihead
