#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <climits>
#include <span>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/kernels/elementwise/unary_functions.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/operators.h"
#include "multihead/ops/reduce.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/modules.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// None, an axis or several.
std::vector<int> to_axes(nb::handle axis, const char* who) {
  std::vector<int> axes;
  if (axis.is_none()) return axes;
  const auto add_axis = [&](nb::handle one) {
    axes.push_back(static_cast<int>(std::clamp<int64_t>(to_integer(one, {who, "axis"}), INT_MIN, INT_MAX)));
  };
  if (PyTuple_Check(axis.ptr()) || PyList_Check(axis.ptr())) {
    for (nb::handle one : axis) add_axis(one);
    MH_CHECK(!axes.empty(), ValueError, who, ": axis must name an axis, or be None for all");
  } else {
    add_axis(axis);
  }
  return axes;
}

void bind_reductions(nb::module_& m) {
  using Reduce = Tensor (*)(const Tensor&, std::span<const int>, bool);
  const auto reduction = [&](const char* name, Reduce f, const char* doc) {
    m.def(
        name,
        [f, name](nb::handle x, nb::handle axis, bool keepdims) {
          const Tensor t = to_tensor(x, {name, "x"});
          const std::vector<int> axes = to_axes(axis, name);
          return unlocked([&] { return f(t, std::span<const int>(axes), keepdims); });
        },
        "x"_a, "axis"_a = nb::none(), "keepdims"_a = false, doc);
  };
  reduction("sum", &sum, "Sum over one axis, several, or all.");
  reduction("mean", &mean, "Mean over one axis, several, or all; 0 of no elements.");
  reduction("max", &max, "Largest element over one axis, several, or all; equal ones share the gradient.");
  reduction("min", &min, "Smallest element over one axis, several, or all; equal ones share the gradient.");
  using Place = Tensor (*)(const Tensor&, int, bool);
  const auto place = [&](const char* name, Place f, const char* doc) {
    m.def(
        name,
        [f, name](nb::handle x, nb::handle axis, bool keepdims) {
          const Tensor t = to_tensor(x, {name, "x"});
          const std::vector<int> axes = to_axes(axis, name);
          MH_CHECK(axes.size() <= 1, ValueError, name, ": axis must be one axis or None");
          if (!axes.empty()) return unlocked([&] { return f(t, axes[0], keepdims); });
          const Tensor found = unlocked([&] { return f(reshape(t.detach(), {-1}), 0, false); });
          return keepdims ? reshape(found, Shape::filled(t.rank(), 1)) : found;
        },
        "x"_a, "axis"_a = nb::none(), "keepdims"_a = false, doc);
  };
  place("argmax", &argmax, "Where the first largest element is: along an axis, or in the flattened tensor.");
  place("argmin", &argmin, "Where the first smallest element is: along an axis, or in the flattened tensor.");
}

void bind_binary(nb::module_& m) {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const auto binary = [&](const char* name, Binary f, const char* doc) {
    m.def(
        name,
        [f, name](nb::handle a, nb::handle b) {
          const Tensor x = to_tensor(a, {name, "a"});
          if (size_of(x.dtype()) == 2 && (PyFloat_Check(b.ptr()) || PyLong_Check(b.ptr()))) {
            const auto number = nb::cast<double>(b);
            return unlocked([&] { return detail::with_number(x, number, f); });
          }
          const Tensor y = to_tensor_like(b, x, {name, "b"});
          return unlocked([&] { return f(x, y); });
        },
        "a"_a, "b"_a, doc);
  };
  binary("add", &add, "a + b; shapes broadcast as in NumPy");
  binary("sub", &sub, "a - b; shapes broadcast as in NumPy");
  binary("mul", &mul, "a * b; shapes broadcast as in NumPy");
  binary("div", &div, "a / b; shapes broadcast as in NumPy");
  binary("matmul", &matmul,
         "a @ b over the last two axes: [..., m, k], [..., k, n] -> [..., m, n].\n"
         "A vector is a row on the left, a column on the right, whose axis the result lacks.");
  bind_reductions(m);
}

void bind_choices(nb::module_& m) {
  m.def(
      "where",
      [](nb::handle mask, nb::handle a, nb::handle b) {
        const Tensor k = to_tensor(mask, {"where", "mask"}), x = to_tensor(a, {"where", "a"});
        const Tensor y = to_tensor_like(b, x, {"where", "b"});
        return unlocked([&] { return where(k, x, y); });
      },
      "mask"_a, "a"_a, "b"_a, "mask ? a : b; mask is bool, all three broadcast together.");
  m.def(
      "concat",
      [](nb::sequence parts, int axis) {
        std::vector<Tensor> tensors;
        for (nb::handle part : parts) tensors.push_back(to_tensor(part, {"concat", "parts"}));
        return unlocked([&] { return concat(std::span<const Tensor>(tensors), axis); });
      },
      "parts"_a, "axis"_a, "Copy of the parts, concatenated.");
}

void bind_elementwise(nb::module_& m) {
  def_op(m, "relu", &relu, "x"_a, "max(x, 0)");
  def_op(m, "gelu", &gelu, "x"_a, "x * Phi(x)");
  def_op(m, "gelu_tanh", &gelu_tanh, "x"_a, "GELU, tanh approximation");
  def_op(m, "silu", &silu, "x"_a, "x * sigmoid(x)");
#define MH_UNARY(name, from_y, value, gradient, value64, slope64, text) \
  def_op(m, #name, static_cast<Tensor (*)(const Tensor&)>(&multihead::name), "x"_a, text);
  MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY

  bind_binary(m);
  bind_choices(m);
}

void bind_layers(nb::module_& m) {
  def_op(
      m, "linear",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
         const Tensor& residual) {
        return linear(x, weight, bias, {activation, residual});
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), nb::kw_only(), "activation"_a = "none",
      "residual"_a = nb::none(),
      "activation(x @ weight.T + bias) + residual: x [..., in], weight [out, in] -> [..., out].");
  def_op(m, "softmax", &softmax, "x"_a, "axis"_a = -1, "Softmax along one axis; rows of -inf give zeros.");
  def_op(m, "log_softmax", &log_softmax, "x"_a, "axis"_a = -1, "Logarithm of the softmax.");
  def_op(m, "layer_norm", &layer_norm, "x"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
         "(x - mean) / sqrt(var + eps) * weight + bias over the last axis.");
  def_op(m, "rms_norm", &rms_norm, "x"_a, "weight"_a = nb::none(), "eps"_a = 1e-6,
         "x / sqrt(mean(x^2) + eps) * weight over the last axis.");
  def_op(m, "embedding", &embedding, "weight"_a, "ids"_a,
         "Looks up rows of weight [V, E]: ids [...] -> [..., E].");
  def_op(m, "dropout", &dropout, "x"_a, "p"_a, "rng"_a.none() = nb::none(),
         "Active if and only if rng is given.");
  def_op(
      m, "cross_entropy",
      [](const Tensor& logits, const Tensor& targets, int64_t ignore_index, double label_smoothing,
         Reduction reduction) {
        return cross_entropy(logits, targets, {ignore_index, label_smoothing, reduction});
      },
      "logits"_a, "targets"_a, nb::kw_only(), "ignore_index"_a = -100, "label_smoothing"_a = 0.0,
      "reduction"_a = "mean",
      "Cross-entropy from logits [..., V] and targets [...]. The mean is over targets that are not ignored, "
      "0 if "
      "there are none.");
}

void bind_rotary_scaling(nb::module_& m) {
  using S = RotaryScaling;
  nb::class_<S> c(m, "RotaryScaling",
                  "Scaling of rotary frequencies for texts longer than in pre-training.\n"
                  "kind: 'none', 'linear', 'llama3' or 'yarn'. Fields are keyword arguments.");
  c.def_rw("factor", &S::factor).def_rw("original_context", &S::original_context);
  c.def_rw("low_freq_factor", &S::low_freq_factor).def_rw("high_freq_factor", &S::high_freq_factor);
  c.def_rw("beta_fast", &S::beta_fast).def_rw("beta_slow", &S::beta_slow);
  c.def_rw("attention_factor", &S::attention_factor).def_rw("truncate", &S::truncate);
  bind_words(c, "kind", &S::kind);
  bind_fields_init(c, "RotaryScaling");
  c.def("__eq__", [](const S& a, const S& b) { return a == b; });
}

void bind_rotary(nb::module_& m) {
  bind_rotary_scaling(m);
  nb::class_<RotaryTable>(
      m, "RotaryTable",
      "Cosines and sines of rotary angles, float32: those of float64 queries are good to 6e-8, too.")
      .def(
          "__init__",
          [](RotaryTable* self, nb::handle cos, nb::handle sin, const std::string& layout) {
            constexpr const char* who = "RotaryTable";
            const Tensor c = to_tensor(cos, {who, "cos"}).contiguous(),
                         s = to_tensor(sin, {who, "sin"}).contiguous();
            MH_CHECK(c.dtype() == Dtype::f32 && s.dtype() == Dtype::f32, DtypeError, who,
                     ": cos and sin must be f32, whatever they rotate, got ", c.dtype(), " and ", s.dtype());
            MH_CHECK(c.rank() == 3 && c.shape() == s.shape(), ShapeError, who,
                     ": cos and sin must be [B or 1, T, R/2], got ", c.shape(), " and ", s.shape());
            new (self) RotaryTable{c, s, rotary_layout_of(layout)};
          },
          "cos"_a, "sin"_a, "layout"_a = "halves")
      .def_ro("cos", &RotaryTable::cos)
      .def_ro("sin", &RotaryTable::sin)
      .def_prop_ro("layout", [](const RotaryTable& t) { return std::string(word_of(t.layout)); });
  m.def(
      "rotary_table",
      [](int64_t length, int64_t rotary_dim, nb::handle starts, double base, const std::string& layout,
         const RotaryScaling* scaling) {
        const RotaryScaling how = scaling != nullptr ? *scaling : RotaryScaling{};
        return rotary_table(length, to_integers(starts, {"rotary_table", "starts"}),
                            rotary_frequencies(rotary_dim, base, how), rotary_layout_of(layout),
                            rotary_amplitude(how));
      },
      "length"_a, "rotary_dim"_a, "starts"_a = 0, "base"_a = 10000.0, "layout"_a = "halves",
      "scaling"_a = nb::none(),
      "Angles position * base^(-2k/R), scaled, for positions start, start + 1, ...");
  def_op(m, "rotary", &rotary, "x"_a, "table"_a, "heads"_a = -1,
         "Rotates the first R dimensions of x [B, T, N, D].");
}

}  // namespace

void bind_ops(nb::module_& m) {
  bind_elementwise(m);
  bind_layers(m);
  bind_rotary(m);
}

}  // namespace multihead::python
