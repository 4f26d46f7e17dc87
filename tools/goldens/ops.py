"""Writes multihead/testing/op_goldens.h: PyTorch's f64 results and gradients for a few ops on fixed inputs."""

import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
lines = []


def emit(name, tensor):
    # repr() of a Python float is exact for f64.
    values = ", ".join(repr(v) for v in tensor.detach().flatten().tolist())
    lines.append(f"inline const std::vector<double> {name} = {{{values}}};")


def case(name, inputs, f):
    """Inputs, output and, for sum(output * seed), the gradients."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    y = f(*leaves)
    seed = torch.randn(y.shape)
    y.backward(seed)
    for i, leaf in enumerate(leaves):
        emit(f"{name}_x{i}", leaf)
        emit(f"{name}_d{i}", leaf.grad)
    emit(f"{name}_seed", seed)
    emit(f"{name}_y", y)


r = torch.randn
case("layer_norm", [r(3, 7), r(7), r(7)], lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-5))
case("rms_norm", [r(3, 7), r(7)], lambda x, w: F.rms_norm(x, (7,), w, 1e-6))
case("gelu", [3 * r(13)], F.gelu)
case("gelu_tanh", [3 * r(13)], lambda x: F.gelu(x, approximate="tanh"))
case("silu", [3 * r(13)], F.silu)
case("log_softmax", [r(3, 5)], lambda x: F.log_softmax(x, -1))
targets = torch.tensor([2, 0, -100, 4, 4])
case("cross_entropy", [r(5, 5)], lambda x: F.cross_entropy(x, targets))
case("cross_entropy_smooth", [r(5, 5)], lambda x: F.cross_entropy(x, targets, label_smoothing=0.2))
case("cross_entropy_sum", [r(5, 5)], lambda x: F.cross_entropy(x, targets, label_smoothing=0.2, reduction="sum"))
case("cross_entropy_none", [r(5, 5)], lambda x: F.cross_entropy(x, targets, reduction="none"))
case("swiglu", [r(3, 8)], lambda x: F.silu(x[:, :4]) * x[:, 4:])

header = pathlib.Path(__file__).resolve().parents[2] / "multihead/testing/op_goldens.h"
header.write_text(
    f"// PyTorch {torch.__version__.split('+')[0]}, f64; written by tools/goldens/ops.py.\n"
    "#pragma once\n\n#include <vector>\n\nnamespace multihead::goldens {\n\n// clang-format off\n"
    + "\n".join(lines)
    + "\n// clang-format on\n\n}  // namespace multihead::goldens\n"
)
