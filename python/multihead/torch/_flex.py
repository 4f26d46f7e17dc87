"""flex_attention on the CPU: custom score and mask functions, forward and backward, without a compiler."""

import weakref

import torch
from torch.overrides import TorchFunctionMode

from .. import _core
from .._trace import draws, trace
from .._torch_guards import plain, refuse_tracers, untraced
from .._trace.values import find, torch_call
from ._attention import attend, autocast, refuse_learnt
from ._blocks import check_blocks

_WHO = "flex_attention"


_NUMBERS = {getattr(torch.Tensor, name) for name in ("item", "tolist", "__float__", "__int__", "__complex__")}


class _Tracing(TorchFunctionMode):
    """Catches captured_tensor[symbol] and torch functions of symbols, and numbers made of tensors that learn."""

    def __init__(self, learns=False):
        super().__init__()
        self.learns = learns

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.learns and func in _NUMBERS and args[0].requires_grad:
            raise TypeError(
                f"{_WHO}: score_mod makes a number of a tensor that requires a gradient (with {func.__name__}), "
                "which it would not get; use the tensor itself, or detach() it"
            )
        symbol = find(list(args) + list(kwargs.values()))
        if getattr(func, "__name__", None) in draws.NAMES:
            draws.refuse(symbol.graph.who if symbol is not None else _WHO, func.__name__)
        return func(*args, **kwargs) if symbol is None else torch_call(func, args, kwargs)


# A function may read anything (globals, attributes, the environment), so that every call traces it again: a trace that
# is kept would keep what it read.


def _score_program(score_mod, dtype):
    """The traced function, and the captured tensors that require a gradient."""
    score, learns = "f64" if dtype is torch.float64 else "f32", torch.is_grad_enabled()
    return trace(score_mod, "score_mod", True, _Tracing(learns), score=score, typed=True, gradients=learns)


class BlockMask:
    """A mask function, traced by every call. Blocks are classified when the kernel reaches them."""

    def __init__(self, mask_mod, shape=(None, None, None, None)):
        self.mask_mod = mask_mod
        self.shape = shape  # (B, H, Q_LEN, KV_LEN), None where any will do

    @property
    def program(self):
        return trace(self.mask_mod, "mask_mod", False, _Tracing(), typed=True)[0]

    @property
    def mask(self):
        return self.program.mask()

    def __repr__(self):
        return f"<multihead BlockMask of {getattr(self.mask_mod, '__name__', 'mask_mod')}, {len(self.program)} steps>"


@untraced
def create_block_mask(
    mask_mod,
    B=None,
    H=None,
    Q_LEN=None,
    KV_LEN=None,
    device="cpu",
    BLOCK_SIZE=None,
    _compile=None,
    separate_full_blocks=True,
):
    """As torch.nn.attention.flex_attention.create_block_mask: mask_mod(b, h, q_idx, kv_idx) -> bool.

    Nothing is materialised: empty or full blocks are found by interval arithmetic. Given lengths must be those of the
    call, as in PyTorch; None accepts any. BLOCK_SIZE and later arguments are ignored.
    """
    if torch.device(device).type != "cpu":
        raise ValueError(f"create_block_mask: device must be cpu, got {device}")
    refuse_learnt("create_block_mask", B=B, H=H, Q_LEN=Q_LEN, KV_LEN=KV_LEN)
    mask = BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN))
    mask.mask  # raises now what cannot be traced
    return mask


_checked = weakref.WeakKeyDictionary()  # PyTorch's BlockMask -> its blocks agree with its function


def _mask_program(block_mask, query, key):
    if isinstance(block_mask, BlockMask):
        program, lengths = block_mask.program, block_mask.shape[2:]
    else:
        mask_mod = getattr(block_mask, "mask_mod", None)  # PyTorch's BlockMask carries its function
        if mask_mod is None:
            raise TypeError(
                f"{_WHO}: block_mask must come from create_block_mask (multihead's or PyTorch's), got "
                f"{type(block_mask).__name__}"
            )
        program = BlockMask(mask_mod).program
        lengths = check_blocks(_WHO, block_mask, program, query, _checked)
    for name, got, expected in (("Q_LEN", query.size(2), lengths[0]), ("KV_LEN", key.size(2), lengths[1])):
        if expected is not None and got != expected:
            raise _core.ShapeError(f"{_WHO}: block_mask was made for {name}={expected}, got {got}; make one for it")
    return program


def _auxiliary(return_lse, return_aux):
    """Whether to return the log-sum-exp, and whether in an AuxOutput."""
    if return_aux is None:
        return return_lse, False
    if return_lse:
        raise ValueError(f"{_WHO}: return_lse and return_aux exclude each other")
    if getattr(return_aux, "max_scores", False):
        raise ValueError(f"{_WHO}: return_aux: the kernel does not keep max_scores; request lse only")
    return bool(return_aux.lse), True


def _result(result, wants_lse, auxiliary):
    if not auxiliary:
        return result
    from torch.nn.attention.flex_attention import AuxOutput

    out, lse = result if wants_lse else (result, None)
    return out, AuxOutput(lse=lse)


@untraced
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
    *,
    return_aux=None,
):
    """torch.nn.attention.flex_attention.flex_attention on the CPU, forward and backward, in O(L) memory.

    `score_mod(score, b, h, q_idx, kv_idx) -> score` and the mask function are traced by every call into a program that
    the kernel evaluates on blocks of 8 x 64 scores: elementwise torch functions with PyTorch's dtypes, and captured tensors
    indexed down to a scalar or a short vector. An unsupported operation raises TypeError, and so does control flow on
    traced values. kernel_options are ignored.

    Shapes    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) -> (B, Hq, L, Ev); lse (B, Hq, L)
    Gradient  query, key, value and captured tensors, from the output and from lse
    Raises    TypeError, ValueError, IndexError (an index outside a captured tensor), ZeroDivisionError, OverflowError
    """
    refuse_tracers(_WHO)
    refuse_learnt(_WHO, scale=scale, enable_gqa=enable_gqa, return_lse=return_lse)
    query, key, value = autocast(query, key, value)
    query, key, value = plain(_WHO, "query", query), plain(_WHO, "key", key), plain(_WHO, "value", value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise _core.ShapeError(f"{_WHO}: {name} must be (B, H, L, E), got shape {list(tensor.shape)}")
    if scale is not None and scale != scale:
        raise ValueError(f"{_WHO}: scale is NaN")
    if query.size(1) != key.size(1) and not enable_gqa:
        raise _core.ShapeError(
            f"{_WHO}: query has {query.size(1)} heads and key {key.size(1)}; set enable_gqa=True to share key heads"
        )
    wants_lse, auxiliary = _auxiliary(return_lse, return_aux)
    if key.size(0) == 1 and query.size(0) > 1:
        key, value = key.expand(query.size(0), -1, -1, -1), value.expand(query.size(0), -1, -1, -1)
    programs, program, mask, learnt = [], None, None, []
    if score_mod is not None:
        program, learnt = _score_program(score_mod, query.dtype)
        programs.append(program)
    if block_mask is not None:
        programs.append(_mask_program(block_mask, query, key))
        mask = programs[-1].mask()
    result = attend(
        query, key, value, None, (None, False, scale, 0.0, 0, wants_lse, mask, program, _WHO), learnt
    )
    for program in programs:
        program.raise_faults(_WHO)
    return _result(result, wants_lse, auxiliary)
