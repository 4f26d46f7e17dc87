#include "multihead/ops/array/solve.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/array/solve.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

Shape batch_of(const Tensor& x) { return x.shape().erased(-1).erased(-1); }
Shape with_matrix(Shape shape, int64_t rows, int64_t columns) {
  shape.push_back(rows);
  shape.push_back(columns);
  return shape;
}

Tensor solved(const Tensor& a, const Tensor& b, const TriangleOptions& o) {
  const Tensor matrix = detail::dense(a), x = b.clone();
  const kernels::SolveSizes sizes{batch_of(x).numel(), x.size(-2), x.size(-1), o.lower, o.transposed, o.unit};
  detail::with_data([&](auto* from, auto* to) { kernels::solve_triangular(from, to, sizes); }, matrix, x);
  return x;
}

// Zero outside the triangle that is read.
void keep_triangle(const Tensor& matrices, const TriangleOptions& o) {
  const int64_t n = matrices.size(-1);
  detail::with_data(
      [&](auto* first) {
        for (int64_t row = 0; row < matrices.numel() / std::max<int64_t>(n, 1); ++row) {
          const int64_t i = row % n, own = o.unit ? 0 : 1;
          const int64_t begin = o.lower ? i + own : 0, end = o.lower ? n : i + 1 - own;
          std::fill(first + row * n + begin, first + row * n + end, 0);
        }
      },
      matrices);
}

}  // namespace

Tensor solve_triangular(const Tensor& left, const Tensor& right, const TriangleOptions& options) {
  if (detail::is_narrow(left) || detail::is_narrow(right)) {
    return cast(solve_triangular(detail::widened(left), detail::widened(right), options),
                detail::common_dtype(left, right));
  }
  constexpr const char* kWho = "solve_triangular";
  detail::check_real(kWho, "a", left);
  detail::check_same_dtype(kWho, "b", right, "a", left);
  MH_CHECK(left.rank() >= 2 && right.rank() >= 2 && left.size(-1) == left.size(-2) &&
               left.size(-1) == right.size(-2),
           ShapeError, kWho, ": a must be [..., n, n] and b [..., n, m], got ", left.shape(), " and ",
           right.shape());
  const Shape batch = broadcast_shapes(batch_of(left), batch_of(right));
  const Tensor a = expand(left, with_matrix(batch, left.size(-2), left.size(-1)));
  const Tensor b = expand(right, with_matrix(batch, right.size(-2), right.size(-1)));
  const Tensor x = solved(a, b, options);
  const bool need_a = a.requires_grad();
  return record({a, b}, x, [=, a = a.detach(), x = x.detach()](const Tensor& d) -> Gradients {
    TriangleOptions turned = options;
    turned.transposed = !options.transposed;
    const Tensor db = solved(a, d, turned);
    if (!need_a) return {Tensor(), db};
    const Tensor& rows = options.transposed ? x : db;
    const Tensor da = neg(matmul(rows, transpose(options.transposed ? db : x, -1, -2)));
    keep_triangle(da, options);
    return {da, db};
  });
}

}  // namespace multihead
