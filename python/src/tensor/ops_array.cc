// Comparisons, sorting, indexing, running sums, systems, windows, and linear attention.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/ops/array/compare.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/array/scan.h"
#include "multihead/ops/array/solve.h"
#include "multihead/ops/array/sort.h"
#include "multihead/ops/array/windows.h"
#include "multihead/ops/linear_attention.h"
#include "python/src/def_op.h"
#include "python/src/modules.h"
#include "python/src/tensor/bindings.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// A number on either side becomes the other's dtype.
std::pair<Tensor, Tensor> to_pair(nb::handle a, nb::handle b, const char* name) {
  const bool number = PyFloat_Check(a.ptr()) || PyLong_Check(a.ptr());
  if (number && nb::isinstance<Tensor>(b)) {
    const Tensor y = to_tensor(b, {name, "b"});
    return {to_tensor_like(a, y, {name, "a"}), y};
  }
  const Tensor x = to_tensor(a, {name, "a"});
  return {x, to_tensor_like(b, x, {name, "b"})};
}

void bind_comparisons(nb::module_& m) {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const auto binary = [&](const char* name, Binary f, const char* doc) {
    m.def(
        name,
        [f, name](nb::handle a, nb::handle b) {
          const auto [x, y] = to_pair(a, b, name);
          return unlocked([&, left = x, right = y] { return f(left, right); });
        },
        "a"_a, "b"_a, doc);
  };
  binary("equal", &equal, "a == b, element by element; shapes broadcast.");
  binary("not_equal", &not_equal, "a != b, element by element; shapes broadcast.");
  binary("less", &less, "a < b, element by element; shapes broadcast.");
  binary("less_equal", &less_equal, "a <= b, element by element; shapes broadcast.");
  binary("greater", &greater, "a > b, element by element; shapes broadcast.");
  binary("greater_equal", &greater_equal, "a >= b, element by element; shapes broadcast.");
  binary("maximum", &maximum,
         "The larger of a and b; NaN if one is. Equal ones get half of the gradient each.");
  binary("minimum", &minimum,
         "The smaller of a and b; NaN if one is. Equal ones get half of the gradient each.");
  m.def(
      "pow",
      [](nb::handle a, nb::handle b) {
        if (PyFloat_Check(b.ptr()) || PyLong_Check(b.ptr())) {
          const Tensor x = to_tensor(a, {"pow", "a"});
          const double exponent = nb::cast<double>(b);
          return unlocked([&] { return pow(x, exponent); });
        }
        const auto [x, y] = to_pair(a, b, "pow");
        return unlocked([&, base = x, exponent = y] { return pow(base, exponent); });
      },
      "a"_a, "b"_a, "a to the power b; shapes broadcast.");
  def_op(
      m, "clamp",
      [](const Tensor& x, std::optional<double> low, std::optional<double> high) {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        return clamp(x, low.value_or(-kInfinity), high.value_or(kInfinity));
      },
      "x"_a, "low"_a = nb::none(), "high"_a = nb::none(),
      "x, but not below low nor above high; the gradient passes where x is within.");
}

void bind_sorting(nb::module_& m) {
  def_op(m, "sort", &multihead::sort, "x"_a, "axis"_a = -1, nb::kw_only(), "descending"_a = false,
         "In order along an axis; NaN counts as the largest number.");
  def_op(m, "argsort", &argsort, "x"_a, "axis"_a = -1, nb::kw_only(), "descending"_a = false,
         "The places of the elements in order; equal ones keep theirs.");
  def_op(
      m, "topk",
      [](const Tensor& x, int64_t count, int axis, bool largest) {
        const std::vector<Tensor> found = topk(x, count, axis, largest);
        return std::pair(found[0], found[1]);
      },
      "x"_a, "count"_a, "axis"_a = -1, nb::kw_only(), "largest"_a = true,
      "The largest elements along an axis, in order, and their places.");
}

void bind_indexing(nb::module_& m) {
  def_op(m, "take", &multihead::take, "x"_a, "indices"_a, "axis"_a,
         "x[..., indices, ...]: the axis is replaced by those of indices.");
  def_op(m, "take_along_axis", &take_along_axis, "x"_a, "indices"_a, "axis"_a,
         "y[..., j, ...] = x[..., indices[..., j, ...], ...] along the axis; the others broadcast.");
  m.def(
      "nonzero",
      [](nb::handle mask) {
        const Tensor t = to_tensor(mask, {"nonzero", "mask"});
        return nb::tuple(nb::cast(unlocked([&] { return nonzero(t); })));
      },
      "mask"_a, "The places of the true elements of a bool tensor: one tensor per axis.");
  def_op(m, "cumsum", &cumsum, "x"_a, "axis"_a, nb::kw_only(), "reverse"_a = false,
         "Running sums along an axis, from its beginning or, reversed, from its end.");
}

void bind_windows(nb::module_& m) {
  def_op(m, "pad", &pad, "x"_a, "axis"_a, "before"_a = 0, "after"_a = 0, nb::kw_only(), "value"_a = 0.0,
         "Elements of a value at the ends of an axis.");
  def_op(m, "shift", &shift, "x"_a, "count"_a, "axis"_a, nb::kw_only(), "value"_a = 0.0,
         "y[i + count] = x[i] along an axis; what leaves is lost, the value comes in.");
  def_op(m, "roll", &roll, "x"_a, "count"_a, "axis"_a,
         "y[i + count] = x[i] along an axis; what leaves comes in at the other end.");
  def_op(
      m, "conv1d",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t stride, int64_t padding,
         int64_t dilation, int64_t groups) {
        return conv1d(x, weight, bias, {stride, padding, dilation, groups});
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), nb::kw_only(), "stride"_a = 1, "padding"_a = 0,
      "dilation"_a = 1, "groups"_a = 1,
      "Cross-correlation of x [B, C, T] with weight [O, C / groups, K] -> [B, O, T'].");
  def_op(
      m, "solve_triangular",
      [](const Tensor& a, const Tensor& b, bool lower, bool transposed, bool unit) {
        return solve_triangular(a, b, {lower, transposed, unit});
      },
      "a"_a, "b"_a, nb::kw_only(), "lower"_a = true, "transposed"_a = false, "unit"_a = false,
      "x with a @ x = b, of which one triangle is read: a [..., n, n], b [..., n, m]. transposed: of its "
      "transpose; unit: the\ndiagonal counts as 1.");
}

void bind_linear_attention(nb::module_& m) {
  def_op(
      m, "linear_attention",
      [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
         LinearRule rule, std::optional<double> scale, int64_t chunk, const Tensor& state,
         const Tensor& lengths) {
        const auto result = linear_attention(q, k, v,
                                             {.rule = rule,
                                              .log_decay = log_decay,
                                              .beta = beta,
                                              .scale = scale,
                                              .chunk = chunk,
                                              .state = state,
                                              .lengths = lengths});
        return std::pair(result[0], result[1]);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "log_decay"_a = nb::none(), "beta"_a = nb::none(),
      "rule"_a = "retention", "scale"_a = nb::none(), "chunk"_a = 64, "state"_a = nb::none(),
      "lengths"_a = nb::none(),
      nb::sig("def linear_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, log_decay: ArrayLike | None "
              "= None, beta: ArrayLike | None = None, rule: str = 'retention', scale: float | None = None, "
              "chunk: int = 64, state: ArrayLike | None = None, lengths: ArrayLike | None = None) -> "
              "tuple[Tensor, Tensor]"),
      "(out, state) of linear attention with a state S [D, Dv] per head, causal: out_t = scale * S_t^T q_t, "
      "where for a token's\nkey k and value v\n\n  rule='retention'    S = exp(log_decay) S + k v^T; without "
      "log_decay plain linear attention\n  rule='delta'        S = S + beta k (v - S^T k)^T\n  "
      "rule='gated_delta'  the delta rule on exp(log_decay) S\n\nShapes    q [B, H, T, D], k [B, Hkv, T, D], "
      "v [B, Hkv, T, Dv] -> [B, H, T, Dv]; log_decay [B, Hkv, T], or\n          [B, Hkv, T, D] for each row "
      "of S; beta [B, Hkv, T], default 1; state [B, Hkv, D, Dv]\nstate     that after the tokens before, "
      "which the call before returned\nlengths   [B] tokens per sequence: outputs past them are 0, the state "
      "is that after them\nchunk     tokens from one state that the backward keeps to the next\n\nThe bits "
      "are the same for any chunk, batch, number of threads, and split of a sequence into calls.");
}

}  // namespace

void bind_array_ops(nb::module_& m) {
  bind_comparisons(m);
  bind_sorting(m);
  bind_indexing(m);
  bind_windows(m);
  bind_linear_attention(m);
}

}  // namespace multihead::python
