// Fused operations, and the functions that change a tensor's shape.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <vector>

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
#include "python/src/names.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

void bind_activations(nb::module_& m) {
  m.def(
      "activate",
      [](nb::handle x, const std::string& activation) {
        const Tensor t = to_tensor(x, {"activate", "x"});
        const Activation f = activation_of(activation);
        return unlocked([&] { return activate(t, f); });
      },
      "x"_a, "activation"_a, "Elementwise 'none', 'relu', 'gelu', 'gelu_tanh' or 'silu'.");
  m.def(
      "gated",
      [](nb::handle gate, nb::handle up, const std::string& activation) {
        const Tensor g = to_tensor(gate, {"gated", "gate"}), u = to_tensor(up, {"gated", "up"});
        const Activation f = activation_of(activation);
        return unlocked([&] { return gated(g, u, f); });
      },
      "gate"_a, "up"_a, "activation"_a, "activation(gate) * up, both of one shape: SwiGLU with 'silu'.");
  m.def(
      "glu",
      [](nb::handle x, const std::string& activation) {
        const Tensor t = to_tensor(x, {"glu", "x"});
        const Activation f = activation_of(activation);
        return unlocked([&] { return glu(t, f); });
      },
      "x"_a, "activation"_a, "activation(gate) * up, the halves of the last axis: x [..., 2F] -> [..., F].");
  m.def(
      "activate_dropout",
      [](nb::handle x, const std::string& activation, double p, Rng* rng) {
        const Tensor t = to_tensor(x, {"activate_dropout", "x"});
        const Activation f = activation_of(activation);
        return unlocked([&] { return activate_dropout(t, f, p, rng); });
      },
      "x"_a, "activation"_a, "p"_a, "rng"_a.none() = nb::none(),
      "dropout(activate(x)) in one pass; active if and only if rng is given.");
  m.def(
      "add_dropout",
      [](nb::handle residual, nb::handle x, double p, Rng* rng) {
        const Tensor r = to_tensor(residual, {"add_dropout", "residual"});
        const Tensor t = to_tensor(x, {"add_dropout", "x"});
        return unlocked([&] { return add_dropout(r, t, p, rng); });
      },
      "residual"_a, "x"_a, "p"_a, "rng"_a.none() = nb::none(),
      "residual + dropout(x) in one pass, both of one shape; active if and only if rng is given.");
}

void bind_norms_and_losses(nb::module_& m) {
  m.def(
      "add_layer_norm",
      [](nb::handle x, nb::handle residual, nb::handle weight, nb::handle bias, double eps) {
        constexpr const char* who = "add_layer_norm";
        const Tensor t = to_tensor(x, {who, "x"}), r = to_tensor(residual, {who, "residual"});
        const Tensor w = to_tensor_or_none(weight, {who, "weight"}),
                     b = to_tensor_or_none(bias, {who, "bias"});
        const AddNorm y = unlocked([&] { return add_layer_norm(t, r, w, b, eps); });
        return nb::make_tuple(y.sum, y.normed);
      },
      "x"_a, "residual"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 1e-5,
      "(x + residual, layer_norm(x + residual)) in one pass: x, residual [..., D], weight, bias [D].");
  m.def(
      "add_rms_norm",
      [](nb::handle x, nb::handle residual, nb::handle weight, double eps) {
        constexpr const char* who = "add_rms_norm";
        const Tensor t = to_tensor(x, {who, "x"}), r = to_tensor(residual, {who, "residual"});
        const Tensor w = to_tensor_or_none(weight, {who, "weight"});
        const AddNorm y = unlocked([&] { return add_rms_norm(t, r, w, eps); });
        return nb::make_tuple(y.sum, y.normed);
      },
      "x"_a, "residual"_a, "weight"_a = nb::none(), "eps"_a = 1e-6,
      "(x + residual, rms_norm(x + residual)) in one pass: x, residual [..., D], weight [D].");
  m.def(
      "linear_cross_entropy",
      [](nb::handle x, nb::handle weight, nb::handle targets, int64_t ignore_index, double label_smoothing,
         const std::string& reduction) {
        constexpr const char* who = "linear_cross_entropy";
        const Tensor t = to_tensor(x, {who, "x"}), w = to_tensor(weight, {who, "weight"});
        const Tensor y = to_tensor(targets, {who, "targets"});
        const CrossEntropyOptions options{ignore_index, label_smoothing, reduction_of(reduction)};
        return unlocked([&] { return linear_cross_entropy(t, w, y, options); });
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

void bind_numbers(nb::module_& m) {
  m.def(
      "scale",
      [](nb::handle x, double factor) {
        const Tensor t = to_tensor(x, {"scale", "x"});
        return unlocked([&] { return scale(t, factor); });
      },
      "x"_a, "factor"_a, "x * factor");
  m.def(
      "add_scalar",
      [](nb::handle x, double value) {
        const Tensor t = to_tensor(x, {"add_scalar", "x"});
        return unlocked([&] { return add_scalar(t, value); });
      },
      "x"_a, "value"_a, "x + value");
}

void bind_shape_functions(nb::module_& m) {
  m.def(
      "reshape",
      [](nb::handle x, nb::handle shape) {
        const Tensor t = to_tensor(x, {"reshape", "x"});
        const Shape target = to_shape(shape, {"reshape", "shape"});
        return unlocked([&] { return reshape(t, target); });
      },
      "x"_a, "shape"_a, "The same elements in another shape; one size may be -1.");
  m.def(
      "transpose",
      [](nb::handle x, int a, int b) {
        return transpose(to_tensor(x, {"transpose", "x"}), a, b);
      },
      "x"_a, "a"_a, "b"_a, "View with two axes swapped.");
  m.def(
      "permute",
      [](nb::handle x, const std::vector<int>& axes) {
        return permute(to_tensor(x, {"permute", "x"}), std::span<const int>(axes));
      },
      "x"_a, "axes"_a, "View whose axis i is x's axis axes[i].");
  m.def(
      "slice",
      [](nb::handle x, int axis, int64_t begin, int64_t end) {
        return slice(to_tensor(x, {"slice", "x"}), axis, begin, end);
      },
      "x"_a, "axis"_a, "begin"_a, "end"_a, "View of the elements [begin, end) of one axis.");
  m.def(
      "split",
      [](nb::handle x, const std::vector<int64_t>& sizes, int axis) {
        return split(to_tensor(x, {"split", "x"}), std::span<const int64_t>(sizes), axis);
      },
      "x"_a, "sizes"_a, "axis"_a, "Consecutive views of these sizes along one axis.");
  m.def(
      "expand",
      [](nb::handle x, nb::handle shape) {
        return expand(to_tensor(x, {"expand", "x"}), to_shape(shape, {"expand", "shape"}));
      },
      "x"_a, "shape"_a, "View with axes of size 1 repeated.");
  m.def(
      "contiguous",
      [](nb::handle x) {
        const Tensor t = to_tensor(x, {"contiguous", "x"});
        return unlocked([&] { return contiguous(t); });
      },
      "x"_a, "Row-major: x itself or a copy.");
  m.def(
      "cast",
      [](nb::handle x, nb::handle dtype) {
        const Tensor t = to_tensor(x, {"cast", "x"});
        const Dtype to = to_dtype(dtype);
        return unlocked([&] { return cast(t, to); });
      },
      "x"_a, "dtype"_a, "x in another dtype, with a gradient.");
}

void bind_masked_scores(nb::module_& m) {
  m.def(
      "masked_scores",
      [](nb::handle scores, nb::handle valid_lens, double value) {
        const Tensor x = to_tensor(scores, {"masked_scores", "scores"});
        const Tensor n = to_tensor(valid_lens, {"masked_scores", "valid_lens"});
        return unlocked([&] { return masked_scores(x, n, value); });
      },
      "scores"_a, "valid_lens"_a, "value"_a = -1e6,
      "scores [B, Tq, Tk] with `value` at keys from valid_lens [B] or [B, Tq] on, in a new tensor. Not "
      "needed for attention:\nmask=mh.lengths(valid_lens) excludes them.");
  m.def(
      "masked_softmax",
      [](nb::handle scores, nb::handle valid_lens) {
        const Tensor x = to_tensor(scores, {"masked_softmax", "scores"});
        const Tensor n = to_tensor(valid_lens, {"masked_softmax", "valid_lens"});
        return unlocked([&] { return masked_softmax(x, n); });
      },
      "scores"_a, "valid_lens"_a,
      "Softmax of scores [B, Tq, Tk] over the keys before valid_lens [B] or [B, Tq]; 0 beyond them, and "
      "everywhere if the\nlength is 0.");
}

}  // namespace

void bind_fused_ops(nb::module_& m) {
  bind_activations(m);
  bind_norms_and_losses(m);
  bind_numbers(m);
  bind_shape_functions(m);
  bind_masked_scores(m);
}

}  // namespace multihead::python
