"""Modules, with PyTorch's weight names. Dropout is active if and only if a call passes rng."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Mapping

from ._core import (
    AttentionSizes, DecodeState, Embedding, FeedForward, Linear, MultiHeadAttention, Norm, OwnAttentionCall,
    RelativeBias, SinusoidalPositionalEncoding, Transformer, TransformerDecoder, TransformerEncoder, TransformerLayer,
    alibi_slopes, manual_seed, position_ids, relative_buckets, sinusoidal_positions,
)  # fmt: skip
from . import _core, _printing
from ._core import Rng, Tensor
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
    """Base class for your own modules: assign Tensors, modules, lists and dicts of them to attributes; define __call__.

    Parameters are named by their attributes, joined by dots, as in PyTorch. A weight that is reached by several
    attributes (self.head = self.embedding.weight) is one parameter; copy.deepcopy() keeps it so. Modules may refer to
    each other. Frozen weights of a layer (requires_grad = False) stay parameters, which are saved and loaded; a Tensor
    in an attribute that does not require a gradient is a constant, and no parameter.
    """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""
        found, seen = [], set()
        for path, tensor, learns in _tensors_in(self):
            if learns and tensor.is_leaf and tensor._identity not in seen:
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
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: expected names with their tensors, a dict, got {type(state).__name__}")
        own = dict(self.named_parameters())
        with _core.NoTape():  # values may require gradients
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
            tensor.detach()._copy_from(state[name])

    def zero_grad(self) -> None:
        for tensor in self.parameters():
            if tensor.requires_grad:
                tensor.grad = None

    def __repr__(self) -> str:
        return _printing.tree(self, type(self).__name__)

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def _tensors_in(module):
    """(path, Tensor, whether it is a weight) of what its attributes hold."""
    entered, learned, found = {id(module)}, {}, []
    for name, value in vars(module).items():
        for path, tensor, learns in _parts(name, value, entered):
            if learns and learned.setdefault(path, tensor) is not tensor:
                raise ValueError(f"{type(module).__name__}: two parameters are named {path}")  # keys 1 and "1"
            found.append((path, tensor, learns))
    return found


def _parts(name, value, entered, is_listed=False):
    """The same of a value. Modules and containers are entered once, as they may refer to each other."""
    if isinstance(value, _core.Tensor):
        yield name, value, is_listed or value.requires_grad
        return
    items = _items_of(value)
    if items is None or id(value) in entered:
        return
    entered.add(id(value))
    for key, item in items:
        yield from _parts(f"{name}.{key}", item, entered, is_listed or _lists_its_own(value))


def _lists_its_own(value):
    """Whether the value says itself what its parameters are, frozen ones too."""
    inherits = isinstance(value, Module) and type(value).named_parameters is Module.named_parameters
    return not inherits and hasattr(value, "named_parameters")


def _items_of(value):
    if isinstance(value, Module) and not _lists_its_own(value):
        return vars(value).items()
    if hasattr(value, "named_parameters"):
        return value.named_parameters()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else None


class Attention(Module):
    """Base class of your own attention, which LanguageModel(config, attention=YourClass) runs in every layer.

    A subclass is known to models by its name from when it is defined; a saved model's folder holds the name, so that
    the class must be defined before the model is loaded. Tensors that require gradients, modules, lists and dicts of
    them in attributes are weights: the model trains, saves and loads them; training begins as __init__ leaves them. In most
    cases attend() alone is new, and caches() where it keeps more than keys and values; docs/own-attention.md has an
    example.

    sizes   embed_dim, num_heads, num_kv_heads, head_dim, bias, out_bias
    call    options: the keywords for mh.attention (the mask, causal with the cached keys counted; dropout); rotary;
            positions [B or 1, T]; counts, new tokens per row or None; grown(name, x), carried(name), carry(name, x):
            the tensors that cached decoding keeps, each of which caches() names
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _core.register_attention(cls.__name__, cls)

    def __init__(self, sizes: AttentionSizes, rng: Rng) -> None:
        self.sizes = sizes
        width = sizes.num_heads * sizes.head_dim
        shared = sizes.num_kv_heads * sizes.head_dim
        self.in_proj = Linear(sizes.embed_dim, width + 2 * shared, bias=sizes.bias, rng=rng)
        self.out_proj = Linear(width, sizes.embed_dim, bias=sizes.out_bias, rng=rng)

    def caches(self) -> dict[str, tuple[int, ...]]:
        """Name: (heads, dim) of a tensor [B, heads, tokens, dim] that grows; (heads, rows, dim) of one that is carried."""
        each = (self.sizes.num_kv_heads, self.sizes.head_dim)
        return {"k": each, "v": each}

    def __call__(self, x: Tensor, call: OwnAttentionCall) -> Tensor:
        """x [B, T, embed_dim] -> the same shape."""
        q, k, v = self.project(x, call)
        if "k" in self.caches():
            k, v = call.grown("k", k), call.grown("v", v)
        return self.merge(self.attend(q, k, v, x, call))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, call: OwnAttentionCall) -> Tensor:
        """Heads [B, H, T, D] from q [B, H, T, D] and all keys k, v [B, Hkv, tokens, D]; x: the layer's input."""
        return _core.attention(q, k, v, **call.options)

    def project(self, x: Tensor, call: OwnAttentionCall) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, heads, T, D] of the new tokens, rotated if the model has rotary positions."""
        batch, length, _ = x.shape
        heads, shared = self.sizes.num_heads, self.sizes.num_kv_heads
        all_heads = _core.reshape(self.in_proj(x), (batch, length, heads + 2 * shared, self.sizes.head_dim))
        if call.rotary is not None:
            all_heads = _core.rotary(all_heads, call.rotary, heads + shared)
        q, k, v = (_core.transpose(part, 1, 2) for part in _core.split(all_heads, [heads, shared, shared], 2))
        return q, k, v

    def merge(self, heads: Tensor) -> Tensor:
        """The output projection of heads [B, H, T, D]."""
        batch, _, length, _ = heads.shape
        return self.out_proj(_core.reshape(_core.transpose(heads, 1, 2), (batch, length, -1)))

    def _tensors(self):
        return [(path, tensor) for path, tensor, _ in _tensors_in(self)]

    def _rebind(self, replaced):
        _rebound(self, replaced, set())

    def _twin(self):
        return _twin_of(self, {})


def _change(value, convert):
    """Converts what a module, a list or a dict holds, in place."""
    if isinstance(value, list):
        value[:] = map(convert, value)
    elif isinstance(value, (dict, Module)):
        inside = vars(value) if isinstance(value, Module) else value
        inside.update([(name, convert(inner)) for name, inner in inside.items()])


def _twin_of(value, twins):
    """A copy whose modules are its own and share their weights. `twins`: by the ids of what they are copies of."""
    if isinstance(value, tuple):
        return type(value)(_twin_of(item, twins) for item in value)
    if not isinstance(value, (list, dict)) and not hasattr(value, "named_parameters"):
        return value
    if id(value) not in twins:
        twins[id(value)] = copy.copy(value)  # before what it holds, which may refer to it
        _change(twins[id(value)], lambda inner: _twin_of(inner, twins))
    return twins[id(value)]


def _rebound(value, replaced, entered):
    """The value with its tensors replaced; all but tuples change in place."""
    if isinstance(value, _core.Tensor):
        return replaced.get(value._identity, value)
    if isinstance(value, tuple):
        return type(value)(_rebound(item, replaced, entered) for item in value)
    if id(value) not in entered:
        entered.add(id(value))
        if hasattr(value, "_rebind") and not isinstance(value, Module):
            value._rebind(replaced)
        _change(value, lambda inner: _rebound(inner, replaced, entered))
    return value


def _name_of(attention):
    """The name of a class of attention, or a name as it is."""
    if isinstance(attention, str):
        return attention
    if isinstance(attention, type) and issubclass(attention, Attention) and attention is not Attention:
        _core.register_attention(attention.__name__, attention)  # a later class may have taken the name
        return attention.__name__
    raise TypeError(f"attention must be a subclass of multihead.nn.Attention, or the name of one, got {attention!r}")


__all__ = [
    "Attention", "AttentionSizes", "DecodeState", "Embedding", "FeedForward", "LayerNorm", "Linear", "Module",
    "MultiHeadAttention", "Norm", "OwnAttentionCall", "RMSNorm", "SinusoidalPositionalEncoding", "Transformer",
    "TransformerDecoder", "TransformerEncoder", "TransformerLayer", "RelativeBias", "relative_buckets",
    "alibi_slopes", "manual_seed", "masked_X", "position_ids", "sinusoidal_positions",
]  # fmt: skip
