// Fused operations, and the functions that change a tensor's shape.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <span>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/attention/masked_softmax.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

void bind_activations(nb::module_& m) {
  def_op(m, "activate", &activate, "x"_a, "activation"_a,
         "Elementwise 'none', 'relu', 'gelu', 'gelu_tanh' or 'silu'.");
  def_op(m, "gated", &gated, "gate"_a, "up"_a, "activation"_a,
         "activation(gate) * up, both of one shape: SwiGLU with 'silu'.");
  def_op(m, "glu", &glu, "x"_a, "activation"_a,
         "activation(gate) * up, the halves of the last axis: x [..., 2F] -> [..., F].");
  def_op(m, "activate_dropout", &activate_dropout, "x"_a, "activation"_a, "p"_a, "rng"_a.none() = nb::none(),
         "dropout(activate(x)) in one pass; active if and only if rng is given.");
  def_op(m, "add_dropout", &add_dropout, "residual"_a, "x"_a, "p"_a, "rng"_a.none() = nb::none(),
         "residual + dropout(x) in one pass, both of one shape; active if and only if rng is given.");
}

void bind_norms_and_losses(nb::module_& m) {
  def_op(
      m, "add_layer_norm",
      [](const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, double eps) {
        const AddNorm y = add_layer_norm(x, residual, weight, bias, eps);
        return std::pair(y.sum, y.normed);
      },
      "x"_a, "residual"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
      "(x + residual, layer_norm(x + residual)) in one pass: x, residual [..., D], weight, bias [D].");
  def_op(
      m, "add_rms_norm",
      [](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
        const AddNorm y = add_rms_norm(x, residual, weight, eps);
        return std::pair(y.sum, y.normed);
      },
      "x"_a, "residual"_a, "weight"_a = nb::none(), "eps"_a = 1e-6,
      "(x + residual, rms_norm(x + residual)) in one pass: x, residual [..., D], weight [D].");
  def_op(
      m, "linear_cross_entropy",
      [](const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t ignore_index,
         double label_smoothing, Reduction reduction) {
        return linear_cross_entropy(x, weight, targets, {ignore_index, label_smoothing, reduction});
      },
      "x"_a, "weight"_a, "targets"_a, nb::kw_only(), "ignore_index"_a = -100, "label_smoothing"_a = 0.0,
      "reduction"_a = "mean",
      "cross_entropy(x @ weight.T, targets) without storing all logits: x [..., E], weight [V, E],\n"
      "targets [...]; reduction 'mean' or 'sum'.");
  m.def(
      "rotary_frequencies",
      [](int64_t rotary_dim, double base, const RotaryScaling* scaling) {
        return rotary_frequencies(rotary_dim, base, scaling != nullptr ? *scaling : RotaryScaling{});
      },
      "rotary_dim"_a, "base"_a = 10000.0, "scaling"_a = nb::none(),
      "base^(-2k / rotary_dim) for k < rotary_dim / 2, scaled.");
  m.def("rotary_amplitude", &rotary_amplitude, "scaling"_a,
        "The factor of sines and cosines under a scaling.");
}

void bind_shape_functions(nb::module_& m) {
  def_op(m, "scale", &scale, "x"_a, "factor"_a, "x * factor");
  def_op(m, "add_scalar", &add_scalar, "x"_a, "value"_a, "x + value");
  def_op(m, "reshape", &reshape, "x"_a, "shape"_a, "The same elements in another shape; one size may be -1.");
  def_op(m, "transpose", &transpose, "x"_a, "a"_a, "b"_a, "View with two axes swapped.");
  def_op(m, "permute", static_cast<Tensor (*)(const Tensor&, std::span<const int>)>(&permute), "x"_a,
         "axes"_a, "View whose axis i is x's axis axes[i].");
  def_op(
      m, "slice",
      [](const Tensor& x, int axis, int64_t begin, int64_t end) { return slice(x, axis, begin, end); }, "x"_a,
      "axis"_a, "begin"_a, "end"_a, "View of the elements [begin, end) of one axis.");
  def_op(
      m, "split",
      [](const Tensor& x, std::span<const int64_t> sizes, int axis) { return split(x, sizes, axis); }, "x"_a,
      "sizes"_a, "axis"_a, "Consecutive views of these sizes along one axis.");
  def_op(m, "expand", &expand, "x"_a, "shape"_a, "View with axes of size 1 repeated.");
  def_op(m, "contiguous", &contiguous, "x"_a, "Row-major: x itself or a copy.");
  def_op(m, "cast", &cast, "x"_a, "dtype"_a, "x in another dtype, with a gradient.");
}

void bind_masked_scores(nb::module_& m) {
  def_op(m, "masked_scores", &masked_scores, "scores"_a, "valid_lens"_a, "value"_a = -1e6,
         "scores [B, Tq, Tk] with `value` at keys from valid_lens [B] or [B, Tq] on, in a new tensor. Not "
         "needed for attention:\nmask=mh.lengths(valid_lens) excludes them. A length below 0 or above Tk is "
         "refused.");
  def_op(m, "masked_softmax", &masked_softmax, "scores"_a, "valid_lens"_a,
         "Softmax of scores [B, Tq, Tk] over the keys before valid_lens [B] or [B, Tq]; 0 beyond them, and "
         "everywhere if the\nlength is 0.");
}

}  // namespace

void bind_fused_ops(nb::module_& m) {
  bind_activations(m);
  bind_norms_and_losses(m);
  bind_shape_functions(m);
  bind_masked_scores(m);
}

}  // namespace multihead::python
