"""Modules, with PyTorch's weight names. Dropout is active if and only if a call passes rng."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from ._core import (
    DecodeState,
    Embedding,
    FeedForward,
    Linear,
    MultiHeadAttention,
    Norm,
    RelativeBias,
    SinusoidalPositionalEncoding,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLayer,
    alibi_slopes,
    manual_seed,
    position_ids,
    relative_buckets,
    sinusoidal_positions,
)
from . import _core, _printing
from ._core import Tensor
from ._types import ArrayLike


def LayerNorm(size: int, eps: float = 1e-5, bias: bool = True) -> Norm:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis."""
    return Norm(size, kind="layer", eps=eps, bias=bias)


def RMSNorm(size: int, eps: float = 1e-6) -> Norm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return Norm(size, kind="rms", eps=eps)


def masked_X(X: ArrayLike, valid_lens: ArrayLike, value: float = -1e6) -> Tensor:  # noqa: N802, N803
    """masked_scores() under its name in the lecture notes."""
    return _core.masked_scores(X, valid_lens, value)


class Module:
    """Base class for your own modules: assign Tensors, modules, and lists of them to attributes, and define __call__.

    Parameters are named by their attributes, joined by dots, as in PyTorch. A weight that is reached by several
    attributes (self.head = self.embedding.weight) is one parameter; copy.deepcopy() keeps it so.
    """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""
        found, seen = [], set()
        for name, value in vars(self).items():
            for path, tensor in _parts(name, value):
                if tensor.requires_grad and tensor._identity not in seen:
                    seen.add(tensor._identity)
                    found.append((path, tensor))
        return found

    def parameters(self) -> list[Tensor]:
        return [tensor for _, tensor in self.named_parameters()]

    def parameter_count(self) -> int:
        return sum(tensor.size for tensor in self.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Copies tensors into the parameters of the same name; FormatError lists all mismatched names."""
        own = dict(self.named_parameters())
        state = {name: _core.tensor(value) for name, value in state.items()}
        problems = [f"missing {name}" for name in own if name not in state]
        problems += [f"unexpected {name}" for name in state if name not in own]
        problems += [
            f"{name} must be {own[name].shape}, got {state[name].shape}"
            for name in own
            if name in state and own[name].shape != state[name].shape
        ]
        if problems:
            raise _core.FormatError(f"{type(self).__name__}: " + "; ".join(problems))
        for name, tensor in own.items():
            tensor.detach().numpy()[...] = state[name].to(tensor.dtype).numpy()

    def zero_grad(self) -> None:
        for tensor in self.parameters():
            tensor.grad = None

    def __repr__(self) -> str:
        return _printing.tree(self, type(self).__name__)

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def _parts(name, value):
    if isinstance(value, _core.Tensor):
        yield name, value
    elif hasattr(value, "named_parameters"):
        for inner, tensor in value.named_parameters():
            yield f"{name}.{inner}", tensor
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _parts(f"{name}.{index}", item)


__all__ = [
    "DecodeState",
    "Embedding",
    "FeedForward",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Norm",
    "RMSNorm",
    "SinusoidalPositionalEncoding",
    "Transformer",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerLayer",
    "RelativeBias",
    "relative_buckets",
    "alibi_slopes",
    "manual_seed",
    "masked_X",
    "position_ids",
    "sinusoidal_positions",
]
