"""Activations. PyTorch computes them in f32 for 16-bit types and supports only relu on integers."""

import math

from . import kinds
from .functions import no_bool, select, where
from .values import cast, constant, lift

_INT, _FLOAT = kinds.INTEGERS, kinds.FLOATS


def _activation(name):
    def decorate(function):
        def f(graph, input, *args, inplace=False, **kwargs):
            x = lift(graph, input)
            if x.kind not in _FLOAT:
                graph.refuse(f"'{name}' takes numbers, got {kinds.DTYPES[x.kind]}")
            if inplace:
                graph.refuse(f"'{name}' in place cannot be traced")
            wide = cast(graph, x, "f32") if x.kind in ("f16", "bf16") else x
            return cast(graph, function(graph, wide, *args, **kwargs), x.kind)

        return f

    return decorate


def _relu(graph, input, inplace=False):
    x = lift(graph, input)
    no_bool(graph, x.kind, "relu")
    if inplace:
        graph.refuse("'relu' in place cannot be traced")
    zero = constant(graph, 0, x.kind)
    if x.kind in _INT:
        return graph.integer("max_i", x.kind, x, zero)
    return select(graph, x.kind, graph.condition("le_f", x, zero), zero, x)


@_activation("silu")
def _silu(graph, x):
    return x * x.sigmoid()


@_activation("gelu")
def _gelu(graph, x, *, approximate="none"):
    if approximate == "none":
        return 0.5 * x * (1.0 + (x * math.sqrt(0.5)).erf())
    if approximate != "tanh":
        graph.refuse(f"'gelu': approximate must be 'none' or 'tanh', got {approximate!r}")
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + inner.tanh())


@_activation("softplus")
def _softplus(graph, x, beta=1, threshold=20):
    scaled = x * float(beta)
    linear = scaled > float(threshold)
    calm = where(graph, linear, 0.0, scaled)  # no infinity in the branch that is not chosen
    return where(graph, linear, x, calm.exp().log1p() / float(beta))


@_activation("log_sigmoid")
def _log_sigmoid(graph, x):
    return x.minimum(0.0) - (-x.abs()).exp().log1p()


@_activation("elu")
def _elu(graph, x, alpha=1.0):
    negative = x <= 0.0
    calm = where(graph, negative, x, 0.0)
    return where(graph, negative, calm.expm1() * float(alpha), x)


@_activation("leaky_relu")
def _leaky_relu(graph, x, negative_slope=0.01):
    return where(graph, x > 0.0, x, x * float(negative_slope))


TABLE = {
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "logsigmoid": _log_sigmoid,
    "elu": _elu,
    "leaky_relu": _leaky_relu,
}
