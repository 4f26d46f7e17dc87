"""flex_attention on the CPU: user score and mask functions, forward and backward, without a compiler."""

import types

import torch
from torch.overrides import TorchFunctionMode

from .. import _core, _trace_symbols
from .._trace import trace
from ._attention import attend, autocast, refuse, refuse_transforms

_WHO = "flex_attention"


class _Tracing(TorchFunctionMode):
    """Catches captured_tensor[symbol] and torch functions of symbols."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _trace_symbols._find(list(args) + list(kwargs.values())) is not None:
            return _trace_symbols._torch_call(func, args, kwargs)
        return func(*args, **kwargs)


class BlockMask:
    """Which pairs may meet: a traced mask function. Blocks are classified when the kernel meets them."""

    def __init__(self, mask_mod, shape=None):
        self.mask_mod = mask_mod
        self.shape = shape
        self.program = trace(mask_mod, "mask_mod", False, _Tracing())
        self.mask = self.program.mask()

    def __repr__(self):
        return f"<multihead BlockMask of {getattr(self.mask_mod, '__name__', 'mask_mod')}, {len(self.program)} steps>"


def create_block_mask(mask_mod, B=None, H=None, Q_LEN=None, KV_LEN=None, device="cpu", BLOCK_SIZE=None, _compile=None):
    """As torch.nn.attention.flex_attention.create_block_mask: mask_mod(b, h, q_idx, kv_idx) -> bool.

    Nothing is materialised: sizes are taken from the call, and empty or full blocks are found by interval arithmetic.
    """
    if torch.device(device).type != "cpu":
        raise ValueError(f"create_block_mask: device must be cpu, got {device}")
    return BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN))


_traced = {}


def _is_fixed(value):
    return isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type))


def _cached(function):
    """The function if it captures nothing that can change, else None: others are traced at every call."""
    if not isinstance(function, types.FunctionType) or function.__closure__ or function.__defaults__:
        return None
    scope = function.__globals__
    if any(name in scope and not _is_fixed(scope[name]) for name in function.__code__.co_names):
        return None
    return function


def _score_program(score_mod):
    key = _cached(score_mod)
    if key is not None and key in _traced:
        return _traced[key]
    program = trace(score_mod, "score_mod", True, _Tracing())
    if key is not None:
        if len(_traced) > 256:
            _traced.clear()
        _traced[key] = program
    return program


def _as_mask(block_mask):
    if isinstance(block_mask, BlockMask):
        return block_mask
    mask_mod = getattr(block_mask, "mask_mod", None)  # PyTorch's BlockMask carries its function
    if mask_mod is None:
        raise TypeError(
            f"{_WHO}: block_mask must come from create_block_mask (multihead's or PyTorch's), got "
            f"{type(block_mask).__name__}"
        )
    return BlockMask(mask_mod)


def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
):
    """torch.nn.attention.flex_attention.flex_attention on the CPU, forward and backward, in O(L) memory.

    `score_mod(score, b, h, q_idx, kv_idx) -> score` and the mask function are traced once into an expression that the
    kernel evaluates on blocks of 8 x 64 scores: arithmetic, comparisons, where, exp, tanh and other element-wise torch
    functions, and captured tensors indexed down to one number. Control flow on traced values raises TypeError.

    Shapes    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) -> (B, Hq, L, Ev); lse (B, Hq, L)
    Gradient  query, key, value (not captured tensors; lse carries none)
    Raises    TypeError, ValueError, IndexError (an index outside a captured tensor)
    """
    refuse_transforms(_WHO)
    query, key, value = autocast(query, key, value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        refuse(_WHO, name, tensor)
        if tensor.dim() != 4:
            raise _core.ShapeError(f"{_WHO}: {name} must be (B, H, L, E), got shape {list(tensor.shape)}")
    if scale is not None and scale != scale:
        raise ValueError(f"{_WHO}: scale is NaN")
    if query.size(1) != key.size(1) and not enable_gqa:
        raise _core.ShapeError(
            f"{_WHO}: query has {query.size(1)} heads and key {key.size(1)}; set enable_gqa=True to share key heads"
        )
    if key.size(0) == 1 and query.size(0) > 1:
        key, value = key.expand(query.size(0), -1, -1, -1), value.expand(query.size(0), -1, -1, -1)
    programs, program, mask = [], None, None
    if score_mod is not None:
        program = _score_program(score_mod)
        programs.append(program)
    if block_mask is not None:
        block_mask = _as_mask(block_mask)
        mask = block_mask.mask
        programs.append(block_mask.program)
    result = attend(query, key, value, None, (None, False, scale, 0.0, 0, return_lse, mask, program, _WHO))
    if any(program.out_of_range for program in programs):
        raise IndexError(f"{_WHO}: score_mod or mask_mod used an index outside a captured tensor")
    return result
